//! The wasmtime host: datasets, losses, tensors for guests, limits. Wasmtime types stay in here.
