//! The batch that a publisher's handle is filling, from an empty buffer until it is sealed: padded, checksummed and
//! numbered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use embar_frame::Now;
use embar_memory::Buffer;
use embar_meter::Recorder;
use embar_transport::biased::BiasedMutex;
use embar_wire::batch::SealFields;
use embar_wire::builder::BatchBuilder;

use super::model::SealedBatch;
#[cfg(feature = "profile")]
use crate::caller::LastCaller;
use crate::profile::publisher::{BATCHES, BUFFER_WRITE, MESSAGES};

/// A batch with room for more.
#[derive(Debug)]
pub(super) struct Filling {
    /// Meaningful once there is a message.
    pub(super) number: u64,
    pub(super) builder: BatchBuilder,
    /// The buffer's reference counter, empty while the builder has the bytes, so that sealing allocates nothing.
    shell: Arc<Buffer>,
}

impl Filling {
    /// # Panics
    /// If somebody else refers to the buffer.
    pub(super) fn new(mut buffer: Arc<Buffer>, capacity: usize) -> Self {
        let bytes = std::mem::take(
            Arc::get_mut(&mut buffer).expect("the pool hands out the only reference"),
        );
        Self {
            number: 0,
            builder: BatchBuilder::new(bytes, capacity),
            shell: buffer,
        }
    }

    /// The buffer, whatever was filled in.
    fn into_buffer(self) -> Arc<Buffer> {
        let Self {
            builder,
            shell: mut buffer,
            ..
        } = self;
        *Arc::get_mut(&mut buffer).expect("the shell is not shared while the batch is filled") =
            builder.into_buffer();
        buffer
    }

    /// Pads, checksums and numbers the batch. All of the payload is checksummed here, in one pass on the thread that
    /// filled it.
    ///
    /// # Panics
    /// If it is empty.
    fn seal(self, fields: SealFields) -> SealedBatch {
        let Self {
            number,
            builder,
            shell: mut buffer,
            ..
        } = self;
        let messages = builder.count();
        *Arc::get_mut(&mut buffer).expect("the shell is not shared while the batch is filled") =
            builder.seal(fields);
        SealedBatch {
            number,
            messages,
            bytes: buffer,
        }
    }
}

/// What a handle has: the thread that publishes by it locks this for each message, so it is that thread's own.
#[derive(Debug)]
pub(super) struct HandleBatch {
    pub(super) current: BiasedMutex<Current>,
    due: Arc<Due>,
    #[cfg(feature = "profile")]
    pub(super) caller: LastCaller,
}

impl HandleBatch {
    pub(super) fn new(recorder: Recorder) -> Self {
        let due = Arc::new(Due::default());
        Self {
            current: BiasedMutex::new(Current {
                filling: None,
                recorder,
                due: due.clone(),
            }),
            due,
            #[cfg(feature = "profile")]
            caller: LastCaller::default(),
        }
    }

    /// When to seal it at the latest; `None` if there is no message in it. It takes no lock, so it may have changed.
    pub(super) fn due(&self) -> Option<Now> {
        self.due.get()
    }
}

/// There is no message in the batch.
const NOT_DUE: u64 = u64::MAX;

/// When a batch is to be sealed at the latest, for all to see.
///
/// Whoever begins a batch stores it, and then looks for how long the control thread sleeps. That thread says that it
/// sleeps for ever, and then looks here. All four are sequentially consistent, so one of the two sees the other.
#[derive(Debug)]
pub(super) struct Due(AtomicU64);

impl Default for Due {
    fn default() -> Self {
        Self(AtomicU64::new(NOT_DUE))
    }
}

impl Due {
    pub(super) fn get(&self) -> Option<Now> {
        let at = self.0.load(Ordering::SeqCst);
        (at < NOT_DUE).then_some(Now(at))
    }

    pub(super) fn set(&self, at: Now) {
        // Who lingers for ever has a batch all the same.
        self.0.store(at.0.min(NOT_DUE - 1), Ordering::SeqCst);
    }

    // Relaxed: who reads it too late looks once more, with the lock.
    fn clear(&self) {
        self.0.store(NOT_DUE, Ordering::Relaxed);
    }
}

/// What the mutex of a handle guards.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) filling: Option<Filling>,
    pub(super) recorder: Recorder,
    pub(super) due: Arc<Due>,
}

impl Current {
    /// Takes the buffer back if there is no message in it.
    pub(super) fn take_unused(&mut self) -> Option<Arc<Buffer>> {
        self.filling
            .take_if(|filling| filling.builder.is_empty())
            .map(Filling::into_buffer)
    }

    /// Seals what is there, if there is a message in it. `fields` makes the header's fields from the batch number.
    pub(super) fn seal(&mut self, fields: impl FnOnce(u64) -> SealFields) -> Option<SealedBatch> {
        let filling = self
            .filling
            .take_if(|filling| !filling.builder.is_empty())?;
        self.due.clear();
        let fields = fields(filling.number);
        let sealed = filling.seal(fields);
        self.recorder
            .add_count(BUFFER_WRITE, u64::from(sealed.messages));
        self.recorder.count(BATCHES, 1);
        self.recorder.count(MESSAGES, u64::from(sealed.messages));
        Some(sealed)
    }
}

#[cfg(test)]
mod tests {
    use embar_meter::Profile;
    use embar_wire::batch::Batch;

    use super::*;
    use crate::profile::publisher::SCHEMA;

    #[test]
    fn sealing_keeps_buffer_and_counter_and_skips_an_empty_batch() {
        let handle = HandleBatch::new(Profile::new(&SCHEMA).recorder());
        let mut current = handle.current.lock();
        let fields = |sequence| SealFields {
            sequence,
            ..SealFields::default()
        };
        assert!(current.seal(fields).is_none());

        let buffer = Arc::new(Buffer::from(vec![0; 4096]));
        let (bytes_at, shell_at) = (buffer.as_ptr(), Arc::as_ptr(&buffer));
        let mut filling = Filling::new(buffer, 4096);
        filling.number = 7;
        current.filling = Some(filling);
        current.due.set(Now(8));
        assert_eq!(handle.due(), Some(Now(8)));
        current.due.set(Now(u64::MAX));
        assert!(
            handle.due().is_some(),
            "a batch that nothing but a flush seals"
        );
        assert!(current.seal(fields).is_none(), "no message yet");

        let filling = current.filling.as_mut().expect("still there");
        filling.builder.try_push(None, &[], b"hello").expect("fits");
        let sealed = current.seal(fields).expect("one message");
        assert_eq!((sealed.number, sealed.messages), (7, 1));
        assert_eq!(
            (sealed.bytes.as_ptr(), Arc::as_ptr(&sealed.bytes)),
            (bytes_at, shell_at)
        );
        let (batch, _) = Batch::split_first(&sealed.bytes, 4096).expect("a good frame");
        assert_eq!(batch.header().sequence(), 7);
        assert!(current.filling.is_none());
        assert_eq!(handle.due(), None);
    }
}
