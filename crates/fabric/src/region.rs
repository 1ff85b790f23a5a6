//! A region: its control file and its payload files, and the readers and writers of the tables in them. A claim of a
//! row gives the writers; any process may have the readers.

mod disk;
mod files;
mod incarnation;
mod order;
mod payload;
mod wakeups;

pub use files::Probe;
pub use incarnation::IncarnationWriter;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use embar_memory::{Damage, Memory, ShowsCopies};

use crate::error::RegionError;
use crate::geometry::Geometry;
use crate::index::{IndexFollower, IndexReader, IndexWriter};
use crate::layout::{Layout, VERSION};
use crate::news::News;
use crate::owner::Claim;
use crate::pages::Pages;
use crate::records::{BrokerRow, ControlRow, Window};
use crate::rows::{self, RowWriter};
use crate::slot::Seen;
use crate::superblock::{Invalid, Superblock};
use crate::sync::fence;
use crate::topic_record::{TopicRecordAt, TopicRecordReader, TopicRecordWriter};
use crate::window::WindowWriter;
use payload::Payload;

/// One process's view of a region. Clones share it.
#[derive(Debug)]
pub struct Region<M> {
    parts: Arc<Parts<M>>,
}

impl<M> Clone for Region<M> {
    fn clone(&self) -> Self {
        Self {
            parts: Arc::clone(&self.parts),
        }
    }
}

#[derive(Debug)]
struct Parts<M> {
    control: Arc<M>,
    /// By data row, in order.
    payloads: Vec<Payload<M>>,
    layout: Layout,
    nonce: u32,
    created: u64,
    /// None for a region that lives in no directory.
    home: Option<Home<M>>,
}

/// Where a region's files are.
#[derive(Debug)]
struct Home<M> {
    dir: PathBuf,
    /// The lock of each row, by its path, because brokers look at the locks of others for as long as they run.
    owners: Vec<PathBuf>,
    /// Maps the payload file of a row that had none when the region was opened.
    map_payload: MapPayload<M>,
}

/// Memory like the control file's, of a file of so many bytes in the directory.
type MapPayload<M> = fn(&M, &Path, u16, u64) -> Result<Arc<M>, RegionError>;

impl<M: ShowsCopies> Region<M> {
    /// Makes a region out of a control file of zeros, as a new one has, and payload files of any content: because
    /// what is not zero and no record is damage. `nonce` is random and not zero; `created` is
    /// in nanoseconds since the Unix epoch; `payload_files` are those of the data rows, in order.
    ///
    /// For simulations and tests; [`Region::create`] makes one in a directory. The caller keeps
    /// the memory, and may store into it: so it must not be a mapping, of which a
    /// [`PayloadFile`](embar_memory::PayloadFile) shows slices.
    ///
    /// ```compile_fail,E0277
    /// # use embar_fabric::{Coherence, Geometry, Mapped, Region};
    /// # use std::sync::Arc;
    /// let control = Arc::new(Mapped::anonymous(32 << 20, Coherence::Coherent).unwrap());
    /// Region::format(control, Vec::new(), &Geometry::default(), 1, 0);
    /// ```
    pub fn format(
        control: Arc<M>,
        payload_files: Vec<Arc<M>>,
        geometry: &Geometry,
        nonce: u32,
        created: u64,
    ) -> Result<Self, RegionError> {
        Self::write_tables(&*control, geometry, nonce, created)?;
        Self::from_parts(control, payload_files)
    }

    /// Opens a region whose memory is at hand: validates the superblock and every length.
    pub fn from_parts(control: Arc<M>, payload_files: Vec<Arc<M>>) -> Result<Self, RegionError> {
        Self::attach(control, payload_files.into_iter().map(Some), None)
    }
}

impl<M: Memory> Region<M> {
    fn write_tables(
        control: &M,
        geometry: &Geometry,
        nonce: u32,
        created: u64,
    ) -> Result<(), RegionError> {
        geometry.validate()?;
        assert_ne!(nonce, 0, "a region's nonce is never zero");
        let layout = Layout::new(geometry);
        if control.len() < layout.control_bytes() {
            return Err(RegionError::InvalidGeometry {
                what: format!(
                    "the control file needs {} bytes and has {}",
                    layout.control_bytes(),
                    control.len()
                ),
            });
        }
        // Last: a superblock says that all the rest is in order.
        Superblock {
            nonce,
            created,
            geometry: geometry.clone(),
        }
        .store(control);
        Ok(())
    }

    /// Payload files by data row, in order; only those of spares may be missing.
    fn attach(
        control: Arc<M>,
        payload_files: impl IntoIterator<Item = Option<Arc<M>>>,
        home: Option<Home<M>>,
    ) -> Result<Self, RegionError> {
        let named = home.as_ref().map_or(Path::new(""), |it| &it.dir);
        let block = Superblock::load(&*control).map_err(|e| invalid(named, e))?;
        let layout = Layout::new(&block.geometry);
        let geometry = &block.geometry;
        let payload_files: Vec<Option<Arc<M>>> = payload_files.into_iter().collect();
        let fits = |(row, payload_file): (u16, &Option<Arc<M>>)| match payload_file {
            Some(payload_file) => payload_file.len() >= geometry.payload_bytes,
            None => geometry.is_spare(row),
        };
        let lengths_fit = control.len() >= layout.control_bytes()
            && payload_files.len() == geometry.data_rows().count()
            && geometry.data_rows().zip(&payload_files).all(fits);
        if !lengths_fit {
            return Err(RegionError::damaged(
                named,
                "a file is missing or too short",
            ));
        }
        let files = payload_files.iter().flatten().chain([&control]);
        if !payload::are_apart(files.map(|memory| &**memory)) {
            return Err(RegionError::damaged(named, "two of its files are the same"));
        }
        let (nonce, created) = (block.nonce, block.created);
        Ok(Self {
            parts: Arc::new(Parts {
                control,
                payloads: payload_files.into_iter().map(Payload::new).collect(),
                layout,
                nonce,
                created,
                home,
            }),
        })
    }

    /// The region's shape.
    pub fn geometry(&self) -> &Geometry {
        self.parts.layout.geometry()
    }

    /// Where everything lies.
    pub fn layout(&self) -> &Layout {
        &self.parts.layout
    }

    /// The random number that tells this region's records from any other's. Never zero.
    pub fn nonce(&self) -> u32 {
        self.parts.nonce
    }

    /// When it was created, in nanoseconds since the Unix epoch.
    pub fn created(&self) -> u64 {
        self.parts.created
    }

    /// The directory it lives in, if any.
    pub fn dir(&self) -> Option<&Path> {
        self.parts.home.as_ref().map(|home| home.dir.as_path())
    }

    /// Claims a row without a lock, with the next incarnation: for simulations and tests of a
    /// region without a directory, where the caller knows that the owner before is dead.
    pub fn claim_unlocked(&self, row: u16) -> Claim {
        self.take_as_own(row);
        Claim::unlocked(row, self.raise_incarnation(row))
    }

    fn pages(&self, row: u16) -> Pages<M> {
        let at = self.parts.layout.index_pages(row);
        Pages {
            memory: Arc::clone(&self.parts.control),
            at: at.unwrap_or(0),
            pages: at.map_or(0, |_| self.geometry().index_pages),
            nonce: self.parts.nonce,
        }
    }

    /// The index of the claimed row, to append to. Reads what the owner before left. Without pages,
    /// so always full, for a row that takes no data.
    pub fn index_writer(&self, claim: &Claim) -> IndexWriter<M> {
        let row = claim.row();
        let is_followed = self.geometry().disks > 0 && self.geometry().takes_data(row);
        let news = is_followed.then(|| self.news_writer(News::IndexPages(row)));
        IndexWriter::attach(self.pages(row), news)
    }

    /// The index of a broker, to follow what it announces.
    ///
    /// # Panics
    /// When the region has no disks, or the row takes no data.
    pub fn index_follower(&self, broker: u16) -> IndexFollower<M> {
        assert!(
            self.geometry().takes_data(broker),
            "row {broker} has no index"
        );
        IndexFollower::new(self.pages(broker), self.news(News::IndexPages(broker)))
    }

    /// The index of a broker, to read; empty for a row that takes no data.
    pub fn index_reader(&self, broker: u16) -> IndexReader<M> {
        IndexReader::new(self.pages(broker))
    }

    /// The window row of a topic of the claimed row.
    pub fn window_writer(&self, claim: &Claim, topic: u16) -> WindowWriter<M> {
        let found = self.window(claim.row(), topic).found();
        let row = self.row_writer(self.parts.layout.window(claim.row(), topic));
        WindowWriter::attach(row, found, claim.incarnation())
    }

    /// Stores the window of a broker that nobody has claimed yet, in a region that gets back what another one had: the broker goes
    /// on there.
    ///
    /// # Panics
    /// When the claim is not the head's.
    pub fn store_window(&self, claim: &Claim, broker: u16, topic: u16, window: &Window) {
        assert_eq!(claim.row(), 0, "the head restores a region");
        let at = self.parts.layout.window(broker, topic);
        self.row_writer(at).store(window);
    }

    /// What a broker retains of a topic; nothing before it says so. Payload that was copied before
    /// this call, and is in the window that it finds, was still there when it was copied.
    pub fn window(&self, broker: u16, topic: u16) -> Seen<Window> {
        // Partner: the fence with which `WindowWriter::raise_first` ends.
        fence(Ordering::Acquire);
        self.read_row(self.parts.layout.window(broker, topic))
    }

    /// The topic records, to store into.
    ///
    /// # Panics
    ///
    /// When the claim is not the head's.
    pub fn topic_record_writer(&self, claim: &Claim) -> TopicRecordWriter<M> {
        assert_eq!(claim.row(), 0, "topic records belong to the head");
        let records = (0..self.geometry().topics).map(|i| TopicRecordAt {
            at: self.parts.layout.topic_record(i),
            nonce: self.parts.nonce,
        });
        let news = self.news_writer(News::TopicRecords);
        TopicRecordWriter::attach(Arc::clone(&self.parts.control), records, news)
    }

    /// The topic records, to read.
    pub fn topic_records(&self) -> TopicRecordReader<M> {
        TopicRecordReader {
            memory: Arc::clone(&self.parts.control),
            first: TopicRecordAt {
                at: self.parts.layout.topic_record(0),
                nonce: self.parts.nonce,
            },
            records: self.geometry().topics,
        }
    }

    /// The claimed row of the broker table.
    pub fn broker_row_writer(&self, claim: &Claim) -> RowWriter<M, BrokerRow> {
        self.row_writer(self.parts.layout.broker_row(claim.row()))
    }

    /// A row of the broker table; nothing before it is first stored.
    pub fn broker_row(&self, row: u16) -> Seen<BrokerRow> {
        self.read_row(self.parts.layout.broker_row(row))
    }

    /// The claimed control row.
    pub fn control_row_writer(&self, claim: &Claim) -> RowWriter<M, ControlRow> {
        self.row_writer(self.parts.layout.control_row(claim.row()))
    }

    /// A control row; nothing before it is first stored.
    pub fn control_row(&self, row: u16) -> Seen<ControlRow> {
        self.read_row(self.parts.layout.control_row(row))
    }

    fn row_writer<T: crate::records::Record>(&self, at: u64) -> RowWriter<M, T> {
        RowWriter::attach(Arc::clone(&self.parts.control), at, self.parts.nonce)
    }

    fn read_row<T: crate::records::Record>(&self, at: u64) -> Seen<T> {
        rows::read(&*self.parts.control, at, self.parts.nonce)
    }

    pub(crate) fn control_memory(&self) -> &M {
        &self.parts.control
    }

    /// What was found to be damaged in the control file, since this process opened it: table, entry, and
    /// how bad. Only who reads a record finds that.
    pub fn damage(&self) -> Vec<(&'static str, u64, Damage)> {
        let found = self.parts.control.damage().into_iter();
        let named = found.map(|(at, damage)| {
            let (table, entry) = self.parts.layout.name_of(at);
            (table, entry, damage)
        });
        named.collect()
    }
}

fn invalid(dir: &Path, why: Invalid) -> RegionError {
    match why {
        Invalid::Damaged(what) => RegionError::damaged(dir, what),
        Invalid::OtherVersion(found) => RegionError::OtherVersion {
            dir: dir.to_owned(),
            found,
            ours: VERSION,
        },
    }
}
