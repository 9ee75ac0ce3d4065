// ProcessGroupGloo.hpp includes this and needs nothing of it.
#pragma once
