//! WebAssembly plug-ins: the host with guests that misbehave, and those that are shipped.

mod host;
mod shipped;
