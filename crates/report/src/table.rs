//! Figures in words.

/// Figures in words.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// What the table is, for those who do not see where it stands.
    pub caption: String,
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
    /// Whether headings are written upwards, because columns are many and narrow.
    pub is_narrow: bool,
}

impl Table {
    /// Columns whose names begin with `#` hold numbers.
    pub fn new<'a>(caption: impl Into<String>, columns: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            caption: caption.into(),
            columns: columns.into_iter().map(Column::from).collect(),
            rows: Vec::new(),
            is_narrow: false,
        }
    }

    pub fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

/// A column of a [`Table`].
#[derive(Debug)]
pub(crate) struct Column {
    pub name: String,
    pub is_numeric: bool,
}

impl From<&str> for Column {
    fn from(name: &str) -> Self {
        let numeric = name.strip_prefix('#');
        Self {
            name: numeric.unwrap_or(name).to_owned(),
            is_numeric: numeric.is_some(),
        }
    }
}

/// A cell of a [`Table`].
#[derive(Debug, Default)]
pub(crate) struct Cell {
    pub text: String,
    pub mark: Mark,
}

/// What a cell says beside its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mark {
    #[default]
    None,
    Good,
    Bad,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self {
            text: text.into(),
            mark: Mark::None,
        }
    }
}
