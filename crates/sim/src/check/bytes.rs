//! Reads a batch's bytes from the devices, past all caches. Says whether its checksums are right, and which of the
//! batches that publishers sealed it is.

use embar_memory::{Device, Memory, Simulated};
use embar_wire::batch::{Batch, BatchHeader};
use embar_wire::limits::{BATCH_HEADER_BYTES, MAX_BATCH_BYTES};

use crate::host::Devices;
use crate::oracle::{Name, Oracle};

/// The payload files, by row of those that take data, without a cache between.
pub struct PayloadFiles {
    first_row: u16,
    payload_files: Vec<Simulated>,
}

impl PayloadFiles {
    /// Those of these devices, of which `first_row` is the first that takes data.
    pub fn new(devices: &Devices, first_row: u16) -> Self {
        Self {
            first_row,
            payload_files: devices.payload_files.iter().map(Device::view).collect(),
        }
    }

    /// The batch at a place of a row's file, if its checksums are right, and its name, if it is a sealed one.
    pub fn batch(
        &self,
        (row, at): (u16, u64),
        len: u32,
        oracle: &Oracle,
    ) -> Result<(BatchHeader, Option<Name>), String> {
        let payload_file = row
            .checked_sub(self.first_row)
            .and_then(|index| self.payload_files.get(usize::from(index)))
            .ok_or("a row without a payload file")?;
        let inside = at
            .checked_add(len.into())
            .is_some_and(|end| end <= payload_file.len());
        if !inside || !at.is_multiple_of(64) || len < BATCH_HEADER_BYTES as u32 {
            return Err("no place in the file".into());
        }
        let mut bytes = vec![0; len as usize];
        payload_file.read(at, &mut bytes);
        let (batch, rest) =
            Batch::split_first(&bytes, MAX_BATCH_BYTES).map_err(|e| e.to_string())?;
        if !rest.is_empty() {
            return Err(format!("{} more bytes than the batch has", rest.len()));
        }
        let header = *batch.header();
        Ok((header, oracle.genuine(&header, batch.payload())))
    }
}
