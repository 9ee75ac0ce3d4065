#[path = "build/plugins.rs"]
mod plugins;

fn main() {
    plugins::embed();
}
