//! Reads what is on disks and not in memory any more: asks the driver for it, one piece ahead of what a subscriber is being sent.

use std::time::Duration;

use embar_disk::Chain;
use embar_disk::format::Run;
use embar_frame::Now;
use embar_memory::Memory;
use embar_session::CloseReason;
use embar_transport::Token;
use embar_wire::control::{ErrorCode, ErrorReply};

use super::Shard;
use super::disk_piece::{DiskPiece, DiskRead};
use super::state::ShardState;
use crate::clock::Timestamp;
use crate::connection::{Connection, Cursor, Peer};

/// About so many bytes of a disk are one piece, unless a single run of batches is larger.
const PIECE_BYTES: usize = 1 << 20;
/// A subscriber that takes longer for each MiB of a piece goes when others wait for memory.
const PIECE_PATIENCE: Duration = Duration::from_secs(10);

impl<M: Memory> ShardState<M> {
    /// Sends a subscriber a piece that was read for it. True if there was one, or it waits for one.
    pub(super) fn send_piece(&mut self, connection: &mut Connection<M>, now: Now) -> bool {
        let token = connection.token;
        let Peer::Subscriber(cursor) = &mut connection.peer else {
            return false;
        };
        cursor.disk.sending = None;
        while let Some((bytes, next)) = cursor.disk.take(cursor.next, cursor.share, now) {
            cursor.next = next;
            if next < cursor.disk.memory_from {
                self.ask_disks(token, cursor);
            }
            if !bytes.is_empty() {
                connection.core.send_body(Vec::new(), bytes.into_body());
                return true;
            }
        }
        cursor.disk.is_asked()
    }

    /// A subscriber wants what memory has not any more, but for `first` and what comes behind it.
    pub(super) fn read_disks(&mut self, token: Token, cursor: &mut Cursor, first: u64) {
        cursor.disk.memory_from = first;
        self.ask_disks(token, cursor);
    }

    fn ask_disks(&mut self, token: Token, cursor: &mut Cursor) {
        if !cursor.disk.may_ask() {
            return;
        }
        let ((disks, end), all_disks) = {
            let log = self.node.log();
            (log.on_disks(cursor.topic), log.all_disks(cursor.topic))
        };
        let Some(permit) = self.node.disk_pieces.take() else {
            return self.disk_retries.push(token);
        };
        cursor.disk.ask(permit);
        let row = match cursor.is_ordered {
            true => Run::ORDERED,
            false => self.node.id,
        };
        let read = DiskRead {
            chain: Chain {
                topic: cursor.topic,
                row,
            },
            disks,
            former_disks: all_disks & !disks,
            from: cursor.next,
            end,
            share: cursor.share,
            bytes: PIECE_BYTES,
        };
        self.disk_reads.push((token, read));
    }
}

impl<M: Memory> ShardState<M> {
    /// What is on no disk any more does not come later.
    fn unless_gone(&self, read: &DiskRead, piece: DiskPiece) -> DiskPiece {
        if !matches!(piece, DiskPiece::Later) {
            return piece;
        }
        let stats = self.node.log().topic_stats(read.chain.topic);
        match stats.map(|stats| stats.first_on_disks) {
            Some(first) if first > read.from => DiskPiece::Gone { first },
            _ => piece,
        }
    }
}

impl<M: Memory> Shard<M> {
    /// A read that was asked for is over.
    pub fn disk_read(&mut self, token: Token, read: &DiskRead, piece: DiskPiece, at: Timestamp) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let Peer::Subscriber(cursor) = &mut connection.peer else {
            return;
        };
        match self.state.unless_gone(read, piece) {
            DiskPiece::Batches { bytes, next } if next > read.from => {
                cursor.disk.came(read.from, read.share, bytes, next);
                self.state.ready.push(token);
            }
            DiskPiece::Batches { .. } | DiskPiece::Later => {
                cursor.disk.came_to_nothing();
                self.state.disk_retries.push(token);
            }
            DiskPiece::Gone { first } if cursor.disk.begins_anywhere => {
                cursor.disk.came_to_nothing();
                cursor.next = first;
                self.state.ready.push(token);
            }
            DiskPiece::Gone { first } => {
                let what = format!(
                    "offset {} is not on the disks any more, the first one kept is {first}: read from there",
                    read.from
                );
                let mut error = ErrorReply::new(ErrorCode::OffsetOutOfRange, what);
                error.first_available = Some(first);
                self.state.refuse(connection, error, at);
            }
            DiskPiece::Failed { why } => {
                let error = ErrorReply::new(ErrorCode::Damaged, why);
                self.state.refuse(connection, error, at);
            }
        }
    }

    /// Those who found no memory for a piece ask again. The slowest readers go for them.
    pub(super) fn retry_disk_reads(&mut self, now: Now) {
        if self.state.disk_retries.is_empty() {
            return;
        }
        if self.state.node.disk_pieces.are_taken() {
            for connection in self.connections.values_mut() {
                if let Peer::Subscriber(cursor) = &connection.peer
                    && let Some((permit, since)) = &cursor.disk.sending
                    && now.since(*since) >= PIECE_PATIENCE * permit.mebibytes()
                {
                    let what = "subscriber too slow: what it is being sent takes memory for which others wait; read faster, or from fewer connections";
                    connection.core.close(CloseReason::Full, what);
                    self.state.ready.push(connection.token);
                }
            }
        }
        self.state.ready.append(&mut self.state.disk_retries);
    }
}
