//! All methods for commands, their options, [`Script`] and [`Function`]: `use embar_redis::prelude::*;`.

pub use crate::commands::Commands;
pub use crate::commands::bitmaps::BitmapCommands;
pub use crate::commands::blocking::BlockingCommands;
pub use crate::commands::geo::GeoCommands;
pub use crate::commands::hash_fields::HashFieldCommands;
pub use crate::commands::hashes::HashCommands;
pub use crate::commands::hyperloglog::HyperLogLogCommands;
pub use crate::commands::keys::KeyCommands;
pub use crate::commands::lists::ListCommands;
pub use crate::commands::options::*;
pub use crate::commands::scripting::ScriptCommands;
pub use crate::commands::server::ServerCommands;
pub use crate::commands::sets::SetCommands;
pub use crate::commands::sorted_set_algebra::SortedSetAlgebra;
pub use crate::commands::sorted_sets::SortedSetCommands;
pub use crate::commands::stream_groups::StreamGroupCommands;
pub use crate::commands::streams::StreamCommands;
pub use crate::commands::strings::StringCommands;
pub use crate::function::Function;
pub use crate::script::Script;
