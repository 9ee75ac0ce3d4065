//! Layers to modules on devices: building, initialising, forward, saving and loading parameters.
