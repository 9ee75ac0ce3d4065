pub fn starter() -> &'static str {
    ""
}
