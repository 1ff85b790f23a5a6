//! How large blocks are.

/// Smallest block, and the unit of all blocks.
pub const UNIT_BYTES: u64 = 64 << 10;
/// Largest block.
pub const BLOCK_BYTES_MAX: u64 = 16 << 20;
/// Order of the largest block: 64 KiB << 8 = 16 MiB.
pub const ORDER_MAX: u8 = 8;

const _: () = assert!(UNIT_BYTES << ORDER_MAX == BLOCK_BYTES_MAX);
