use crate::both;
use embar_redis::prelude::*;

#[tokio::test]
async fn bits_are_set_and_counted() {
    both(async |c| {
        assert!(!c.setbit("k", 9, true).await.unwrap());
        assert!(c.setbit("k", 9, true).await.unwrap());
        assert!(c.getbit("k", 9).await.unwrap());
        assert!(!c.getbit("k", 8).await.unwrap());
        c.set("k", [0_u8, 0xFF, 0x0F].as_slice()).await.unwrap();
        assert_eq!(c.bitcount("k").await.unwrap(), 12);
        assert_eq!(
            c.bitcount_range("k", -1, -1, BitUnit::Byte).await.unwrap(),
            4
        );
        assert_eq!(c.bitcount_range("k", 0, 9, BitUnit::Bit).await.unwrap(), 2);
        assert_eq!(c.bitpos("k", true).await.unwrap(), 8);
        assert_eq!(
            c.bitpos_range("k", true, 16, -1, BitUnit::Bit)
                .await
                .unwrap(),
            20
        );
        assert_eq!(
            c.bitpos_range("k", true, 0, 0, BitUnit::Byte)
                .await
                .unwrap(),
            -1
        );
        c.set("m", [0xF0_u8].as_slice()).await.unwrap();
        for (op, wanted) in [
            (BitOp::And, [0, 0, 0]),
            (BitOp::Or, [0xF0, 0xFF, 0x0F]),
            (BitOp::Xor, [0xF0, 0xFF, 0x0F]),
        ] {
            assert_eq!(c.bitop(op, "d", ["k", "m"]).await.unwrap(), 3);
            assert_eq!(c.get::<Vec<u8>, _>("d").await.unwrap(), wanted);
        }
        assert_eq!(c.bitop(BitOp::Not, "d", ["m"]).await.unwrap(), 1);
        assert_eq!(c.get::<Vec<u8>, _>("d").await.unwrap(), [0x0F]);
    })
    .await;
}

#[tokio::test]
async fn numbers_are_kept_in_bits() {
    both(async |c| {
        use BitField::{Get, IncrBy, Set};
        let operations = [
            Set("u8", 0, 200),
            IncrBy("u8", 0, 100),
            BitField::Overflow(Overflow::Saturate),
            IncrBy("u8", 0, 1000),
            BitField::Overflow(Overflow::Fail),
            IncrBy("u8", 0, 1),
            Set("i5", 8, -3),
            Get("i5", 8),
        ];
        let results = c.bitfield("k", operations).await.unwrap();
        assert_eq!(
            results,
            [Some(0), Some(44), Some(255), None, Some(0), Some(-3)]
        );
        assert_eq!(
            c.bitfield_ro("k", [("u8", "#0"), ("i5", "8")])
                .await
                .unwrap(),
            [255, -3]
        );
    })
    .await;
}

#[tokio::test]
async fn different_elements_are_estimated() {
    both(async |c| {
        assert!(c.pfadd("a", "x").await.unwrap());
        assert!(!c.pfadd("a", "x").await.unwrap());
        assert!(c.pfadd_many("b", ["x", "y", "z"]).await.unwrap());
        assert_eq!(c.pfcount("b").await.unwrap(), 3);
        assert_eq!(c.pfcount_many(["a", "b"]).await.unwrap(), 3);
        c.pfmerge("d", ["a", "b"]).await.unwrap();
        assert_eq!(c.pfcount("d").await.unwrap(), 3);
    })
    .await;
}
