use crate::{both, text, texts};
use embar_redis::prelude::*;

/// From the documentation of `GEOADD`.
const SICILY: [(f64, f64, &str); 2] = [
    (13.361389, 38.115556, "Palermo"),
    (15.087269, 37.502669, "Catania"),
];

#[tokio::test]
async fn places_are_kept() {
    both(async |c| {
        assert_eq!(
            c.geoadd("g", GeoAddOptions::new(), SICILY).await.unwrap(),
            2
        );
        let options = GeoAddOptions::new().if_present().changed();
        assert_eq!(
            c.geoadd("g", options, [(13.4, 38.1, "Palermo"), (0.0, 0.0, "x")])
                .await
                .unwrap(),
            1
        );
        assert_eq!(
            c.geoadd("g", GeoAddOptions::new().if_absent(), SICILY)
                .await
                .unwrap(),
            0
        );
        let places = c.geopos("g", ["x", "Palermo"]).await.unwrap();
        assert_eq!(places[0], None);
        let (longitude, latitude) = places[1].unwrap();
        assert!((longitude - 13.4).abs() < 1e-5 && (latitude - 38.1).abs() < 1e-5);
        c.geoadd("g", GeoAddOptions::new(), SICILY).await.unwrap();
        let far = c
            .geodist("g", "Palermo", "Catania", GeoUnit::Kilometres)
            .await
            .unwrap();
        assert_eq!(far, Some(166.2742));
        assert_eq!(
            c.geodist("g", "Palermo", "x", GeoUnit::Metres)
                .await
                .unwrap(),
            None
        );
        let hashes = c.geohash("g", ["Palermo", "x"]).await.unwrap();
        assert_eq!(hashes, [Some(text("sqc8b49rny0")), None]);
    })
    .await;
}

#[tokio::test]
async fn places_are_searched() {
    both(async |c| {
        c.geoadd("g", GeoAddOptions::new(), SICILY).await.unwrap();
        let middle = GeoFrom::Position(15.0, 37.0);
        let radius = GeoShape::Radius(200.0, GeoUnit::Kilometres);
        let options = GeoSearchOptions::new;
        let far: Vec<String> = c
            .geosearch("g", middle, radius, options().farthest_first())
            .await
            .unwrap();
        assert_eq!(far, texts(["Palermo", "Catania"]));
        type Row = (String, f64, (f64, f64));
        let rows = options().nearest_first().count(1).distances().positions();
        let near: Vec<Row> = c.geosearch("g", middle, radius, rows).await.unwrap();
        assert_eq!(
            (near.len(), &*near[0].0, near[0].1),
            (1, "Catania", 56.4413)
        );
        assert!((near[0].2.0 - 15.087269).abs() < 1e-5);
        let square = GeoShape::Box(200.0, 200.0, GeoUnit::Miles);
        let from = GeoFrom::Member("Palermo");
        assert_eq!(
            c.geosearch::<Vec<String>>("g", from, square, options().any(1))
                .await
                .unwrap()
                .len(),
            1
        );
        let feet = GeoShape::Radius(1000.0, GeoUnit::Feet);
        assert_eq!(
            c.geosearchstore("d", "g", from, feet, options().store_distances())
                .await
                .unwrap(),
            1
        );
        assert_eq!(c.zscore("d", "Palermo").await.unwrap(), Some(0.0));
    })
    .await;
}
