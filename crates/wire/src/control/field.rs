//! How the fields of control messages go into Protobuf views and come out again.

use buffa::{MessageFieldView, MessageView, RepeatedView, ViewEncode};

use super::error::ControlError;
use crate::topic::Order;

/// A message with its own Protobuf type.
pub(super) trait Body: Sized {
    type View<'a>: MessageView<'a> + ViewEncode<'a>
    where
        Self: 'a;

    fn to_view(&self) -> Self::View<'_>;
    fn from_view(view: Self::View<'_>) -> Result<Self, ControlError>;
}

/// A body that occurs inside of others.
pub(super) trait Nested: Body {}

/// A field; `name` is for errors.
pub(super) trait Field: Sized {
    type Wire<'a>
    where
        Self: 'a;

    fn to_wire(&self) -> Self::Wire<'_>;
    fn from_wire(wire: Self::Wire<'_>, name: &'static str) -> Result<Self, ControlError>;
}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Field for $type {
            type Wire<'a> = $type;

            fn to_wire(&self) -> $type {
                *self
            }

            fn from_wire(wire: $type, _: &'static str) -> Result<Self, ControlError> {
                Ok(wire)
            }
        }
    )*};
}

plain!(u32, u64, bool, Option<u32>, Option<u64>);

/// Protobuf has no shorter numbers.
impl Field for u8 {
    type Wire<'a> = u32;

    fn to_wire(&self) -> u32 {
        (*self).into()
    }

    fn from_wire(wire: u32, field: &'static str) -> Result<Self, ControlError> {
        wire.try_into().map_err(|_| ControlError::Field { field })
    }
}

impl Field for Order {
    type Wire<'a> = u32;

    fn to_wire(&self) -> u32 {
        (*self).into()
    }

    fn from_wire(wire: u32, field: &'static str) -> Result<Self, ControlError> {
        wire.try_into().map_err(|_| ControlError::Field { field })
    }
}

impl Field for Option<Order> {
    type Wire<'a> = Option<u32>;

    fn to_wire(&self) -> Option<u32> {
        self.map(u32::from)
    }

    fn from_wire(wire: Option<u32>, field: &'static str) -> Result<Self, ControlError> {
        wire.map(|level| Order::from_wire(level, field)).transpose()
    }
}

impl Field for String {
    type Wire<'a> = &'a str;

    fn to_wire(&self) -> &str {
        self
    }

    fn from_wire(wire: &str, _: &'static str) -> Result<Self, ControlError> {
        Ok(wire.to_owned())
    }
}

impl Field for Option<String> {
    type Wire<'a> = Option<&'a str>;

    fn to_wire(&self) -> Option<&str> {
        self.as_deref()
    }

    fn from_wire(wire: Option<&str>, _: &'static str) -> Result<Self, ControlError> {
        Ok(wire.map(str::to_owned))
    }
}

impl Field for Vec<u8> {
    type Wire<'a> = &'a [u8];

    fn to_wire(&self) -> &[u8] {
        self
    }

    fn from_wire(wire: &[u8], _: &'static str) -> Result<Self, ControlError> {
        Ok(wire.to_owned())
    }
}

impl Field for crate::time::WallNs {
    type Wire<'a> = u64;

    fn to_wire(&self) -> u64 {
        self.0
    }

    fn from_wire(wire: u64, _: &'static str) -> Result<Self, ControlError> {
        Ok(Self(wire))
    }
}

impl<T: Nested> Field for Vec<T> {
    type Wire<'a>
        = RepeatedView<'a, T::View<'a>>
    where
        T: 'a;

    fn to_wire(&self) -> Self::Wire<'_> {
        self.iter().map(Body::to_view).collect()
    }

    fn from_wire(wire: Self::Wire<'_>, _: &'static str) -> Result<Self, ControlError> {
        wire.into_iter().map(T::from_view).collect()
    }
}

/// A message inside of another, required.
pub(super) fn required<'a, V: MessageView<'a> + Clone>(
    field: &MessageFieldView<V>,
    name: &'static str,
) -> Result<V, ControlError> {
    let found = field.as_option().cloned();
    found.ok_or(ControlError::Field { field: name })
}

/// Defines a control message whose fields have the names and types of its Protobuf view.
macro_rules! message {
    (
        $(#[$doc:meta])*
        $name:ident as $view:ident {
            $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $crate::control::field::Body for $name {
            type View<'a> = $crate::proto::$view<'a>;

            #[allow(clippy::needless_update, reason = "views of numbers only have a marker field")]
            fn to_view(&self) -> Self::View<'_> {
                use $crate::control::field::Field;
                $crate::proto::$view {
                    $($field: self.$field.to_wire(),)*
                    ..Default::default()
                }
            }

            fn from_view(view: Self::View<'_>) -> Result<Self, $crate::control::ControlError> {
                use $crate::control::field::Field;
                Ok(Self {
                    $($field: <$type>::from_wire(view.$field, stringify!($field))?,)*
                })
            }
        }
    };
}

/// Defines an enum with the numbers of its Protobuf enum, of which 0 means "not said".
macro_rules! choice {
    (
        $(#[$doc:meta])*
        $name:ident as $proto:ident {
            $($(#[$variant_doc:meta])* $variant:ident = $number:literal,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant = $number,)*
        }

        impl $name {
            /// All of them, by number.
            pub const ALL: &[$name] = &[$($name::$variant,)*];
        }

        impl $crate::control::field::Field for $name {
            type Wire<'a> = buffa::EnumValue<$crate::proto::$proto>;

            fn to_wire(&self) -> Self::Wire<'_> {
                buffa::EnumValue::from(*self as i32)
            }

            fn from_wire(
                wire: Self::Wire<'_>,
                name: &'static str,
            ) -> Result<Self, $crate::control::ControlError> {
                match wire.to_i32() {
                    $($number => Ok(Self::$variant),)*
                    _ => Err($crate::control::ControlError::Field { field: name }),
                }
            }
        }

        #[cfg(test)]
        impl $name {
            /// The enum and the schema name the same numbers.
            pub(crate) fn assert_like_the_schema() {
                use buffa::Enumeration;
                let ours: Vec<i32> = Self::ALL.iter().map(|&choice| choice as i32).collect();
                let theirs = $crate::proto::$proto::values().iter().map(Enumeration::to_i32);
                let theirs: Vec<i32> = theirs.filter(|&number| number != 0).collect();
                assert_eq!(ours, theirs, "{}", stringify!($name));
            }
        }
    };
}

pub(super) use {choice, message};
