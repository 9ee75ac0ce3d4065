//! What `tch` leaves out of libtorch.
