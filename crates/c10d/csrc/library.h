// Which libtorch this process runs with.
#pragma once

extern "C" {

// The path of the libtorch_cpu.so in use as a malloc'ed string for `shim_free`, or null if the loader cannot say.
char* shim_libtorch_path();
}
