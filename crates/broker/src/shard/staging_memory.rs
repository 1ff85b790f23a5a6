//! Staging memory that a thread keeps for the batches to come.

/// Larger buffers are not kept: batches of this size are the largest that publishers send unless told otherwise.
const LARGEST_KEPT: usize = 2 << 20;

/// A few buffers, so that a broker that stages every batch neither allocates nor touches fresh pages for it.
pub(super) struct StagingMemory {
    buffers: Vec<Vec<u8>>,
    most: usize,
}

impl StagingMemory {
    /// Keeps so many buffers, each as large as the largest batch that was in it, and no larger ones than 2 MiB.
    pub fn keeping(most: usize) -> Self {
        Self {
            buffers: Vec::with_capacity(most),
            most,
        }
    }

    /// A buffer of so many bytes, of whatever content.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        // One that has to grow would copy what nobody needs.
        let large_enough = self.buffers.iter().rposition(|it| it.capacity() >= len);
        let Some(at) = large_enough else {
            return vec![0; len];
        };
        let mut bytes = self.buffers.swap_remove(at);
        // Only what it has beyond its last use is written.
        bytes.resize(len, 0);
        bytes
    }

    /// Keeps a buffer that is not needed any more, if there is room, or in place of a smaller one.
    pub fn give_back(&mut self, bytes: Vec<u8>) {
        if bytes.capacity() > LARGEST_KEPT {
            return;
        }
        if self.buffers.len() == self.most {
            let smallest = (0..self.most).min_by_key(|at| self.buffers[*at].capacity());
            let Some(at) = smallest.filter(|at| self.buffers[*at].capacity() < bytes.capacity())
            else {
                return;
            };
            self.buffers.swap_remove(at);
        }
        self.buffers.push(bytes);
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

    #[test]
    fn the_largest_of_those_that_may_stay_are_kept() {
        let mut memory = StagingMemory::keeping(1);
        memory.give_back(vec![1; 10]);
        memory.give_back(vec![2; 20]);
        memory.give_back(vec![3; 5]);
        assert_eq!(memory.take(15), [2; 15], "the largest");
        memory.give_back(vec![4; 10]);
        assert_eq!(
            memory.take(11),
            [0; 11],
            "a new one, as the other is too small"
        );
        assert_eq!(memory.take(10), [4; 10]);
        memory.give_back(vec![5; LARGEST_KEPT + 1]);
        assert!(memory.buffers.is_empty());
    }
}
