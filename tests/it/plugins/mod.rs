mod host;
mod shipped;
