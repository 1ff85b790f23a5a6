//! The protocol of sessions whose program brings none of its own: every frame is a message, and a
//! flag says that it has a head and a body.

use embar_frame::{FrameError, FrameHeader, Protocol, Shape};

/// Any id below 0xFF00 is a message. With the flag [`Plain::BODY`] its payload begins with the
/// length of a head (`u32` LE), then come the head and the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plain;

impl Plain {
    /// The frame carries a head and a body.
    pub const BODY: u16 = 1;
}

impl Protocol for Plain {
    const NAME: &'static str = "plain";
    const VERSION: u32 = 1;

    #[inline]
    fn shape(&self, header: FrameHeader) -> Result<Shape, FrameError> {
        match header.flags {
            0 => Ok(Shape::Whole),
            Self::BODY => Ok(Shape::HeadThenBody),
            flags => Err(FrameError::UnknownFlags {
                id: header.id,
                flags,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_choose_the_shape_and_unknown_ones_are_refused() {
        let shape = |flags| {
            let header = FrameHeader {
                length: 4,
                id: 7,
                flags,
            };
            Plain.shape(header)
        };
        assert_eq!(shape(0), Ok(Shape::Whole));
        assert_eq!(shape(Plain::BODY), Ok(Shape::HeadThenBody));
        let error = FrameError::UnknownFlags { id: 7, flags: 3 };
        assert_eq!(shape(3), Err(error));
    }
}
