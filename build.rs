#[path = "build/libtorch.rs"]
mod libtorch;

fn main() {
    libtorch::link_weakly();
}
