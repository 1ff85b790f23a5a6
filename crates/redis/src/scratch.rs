//! Memory of each thread for an encoded command that is looked at and not sent.

use std::cell::Cell;

use crate::command::Command;

/// Most bytes that a thread keeps.
const KEPT_BYTES: usize = 64 << 10;

thread_local! {
    static BYTES: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Shows an encoded command. It allocates nothing, once the thread has encoded one of that size.
#[inline]
pub(crate) fn with_encoded<R>(command: &impl Command, look: impl FnOnce(&[u8]) -> R) -> R {
    // Taken out: a command's arguments may be anybody's code, which may come here, too.
    let mut bytes = BYTES.take();
    let len = command.encoded_len();
    bytes.resize(len, 0);
    command.encode(&mut bytes);
    let result = look(&bytes);
    if bytes.capacity() <= KEPT_BYTES {
        BYTES.set(bytes);
    }
    result
}
