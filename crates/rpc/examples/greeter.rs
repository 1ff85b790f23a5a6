//! A greeter.
fn main() {}
