//! What lies where in a part of a file: a table that is made with the struct that reads and writes the part, so it cannot be wrong.

/// A field of a [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Bytes from the start of the part.
    pub offset: usize,
    /// Bytes that it takes.
    pub bytes: usize,
    /// What it says, as its documentation has it.
    pub meaning: &'static str,
}

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Its name.
    pub name: &'static str,
    /// What it is and where it lies, as its documentation has it.
    pub about: &'static str,
    /// Bytes that it takes; what varies comes behind them.
    pub bytes: usize,
    /// Its fields in order, without gaps.
    pub fields: &'static [Field],
}

/// Defines a struct that is in files as it is in memory, and its table: `Name, "name of the part", bytes { offset field: type, … }`.
/// Offsets and bytes are asserted. Where it is used, `zerocopy` has to be a dependency.
#[macro_export]
macro_rules! layout {
    (
        $(#[doc = $about:literal])+
        $visibility:vis $name:ident, $title:literal, $bytes:literal {
            $( $(#[doc = $meaning:literal])+ $offset:literal $field:ident: $type:ty, )*
        }
    ) => {
        $(#[doc = $about])+
        #[derive(
            Clone,
            Copy,
            ::zerocopy::FromBytes,
            ::zerocopy::IntoBytes,
            ::zerocopy::Immutable,
            ::zerocopy::KnownLayout,
            ::zerocopy::Unaligned,
        )]
        #[repr(C)]
        $visibility struct $name { $( $(#[doc = $meaning])+ $field: $type, )* }

        const _: () = {
            assert!(size_of::<$name>() == $bytes);
            $( assert!(::core::mem::offset_of!($name, $field) == $offset); )*
        };

        impl $name {
            /// What lies where in it.
            $visibility const LAYOUT: $crate::format::Layout = $crate::format::Layout {
                name: $title,
                about: concat!($($about),+),
                bytes: $bytes,
                fields: &[ $( $crate::format::Field {
                    name: stringify!($field),
                    offset: $offset,
                    bytes: size_of::<$type>(),
                    meaning: concat!($($meaning),+),
                }, )* ],
            };
        }
    };
}
