//! Staging memory that a thread keeps for the batches to come.

/// A few buffers, so that a broker that stages every batch neither allocates nor touches fresh pages for it.
pub(super) struct StagingMemory {
    buffers: Vec<Vec<u8>>,
    most: usize,
}

impl StagingMemory {
    /// Keeps so many buffers, each as large as the largest batch that was in it.
    pub fn keeping(most: usize) -> Self {
        Self {
            buffers: Vec::with_capacity(most),
            most,
        }
    }

    /// A buffer of so many bytes, of whatever content.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let Some(mut bytes) = self.buffers.pop() else {
            return vec![0; len];
        };
        // Only what it has beyond its last use is written.
        bytes.resize(len, 0);
        bytes
    }

    /// Keeps a buffer that is not needed any more, if there is room.
    pub fn give_back(&mut self, bytes: Vec<u8>) {
        if self.buffers.len() < self.most {
            self.buffers.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_few_are_kept() {
        let mut memory = StagingMemory::keeping(2);
        let bytes = memory.take(100);
        assert_eq!(bytes, [0; 100]);
        let place = bytes.as_ptr();
        memory.give_back(bytes);
        let again = memory.take(50);
        assert_eq!((again.len(), again.as_ptr()), (50, place));
        for _ in 0..10 {
            memory.give_back(Vec::new());
        }
        assert_eq!(memory.buffers.len(), 2);
    }
}
