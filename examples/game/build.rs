//! Compiles `proto/game.proto`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    embar_build::compile("proto", "game")
}
