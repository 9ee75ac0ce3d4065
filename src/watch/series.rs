//! A series of numbers in bounded memory: when it has become too long, neighbours become one point, with their mean, least and
//! greatest value.

use serde::Serialize;

/// Some values one after another, of which the mean, the least and the greatest are known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Of the last of them.
    pub x: f64,
    /// Seconds, of the last of them.
    pub time_s: f64,
    pub mean: f64,
    pub least: f64,
    pub greatest: f64,
    /// How many they are.
    #[serde(skip)]
    pub count: u64,
}

impl Point {
    /// Both as one. Values that are not finite do not count beside one that is.
    fn with(self, next: Point) -> Point {
        let (at, count) = ((next.x, next.time_s), self.count + next.count);
        let known = match (self.mean.is_finite(), next.mean.is_finite()) {
            (true, false) => self,
            (false, true) => next,
            _ => Point {
                mean: (self.mean * self.count as f64 + next.mean * next.count as f64) / count as f64,
                least: self.least.min(next.least),
                greatest: self.greatest.max(next.greatest),
                ..self
            },
        };
        Point { x: at.0, time_s: at.1, count, ..known }
    }
}

/// Of any length, in at most `most` points of the same number of values each; the last may have fewer.
#[derive(Clone, Debug)]
pub struct Series {
    most: usize,
    /// Values of a point.
    stride: u64,
    points: Vec<Point>,
}

impl Series {
    /// `most` is at least 2.
    pub fn new(most: usize) -> Series {
        Series { most: most.max(2), stride: 1, points: Vec::new() }
    }

    pub fn push(&mut self, x: f64, time_s: f64, value: f64) {
        let next = Point { x, time_s, mean: value, least: value, greatest: value, count: 1 };
        match self.points.last_mut() {
            Some(last) if last.count < self.stride => *last = last.with(next),
            _ => self.points.push(next),
        }
        if self.points.len() > self.most {
            self.points = self
                .points
                .chunks(2)
                .map(|pair| pair.iter().copied().reduce(Point::with).expect("a chunk has a point"))
                .collect();
            self.stride *= 2;
        }
    }

    /// Forgets what stands at `x` and behind it: a run that goes on from a checkpoint repeats that.
    pub fn back_to(&mut self, x: f64) {
        self.points.retain(|point| point.x < x);
    }

    pub fn points(&self) -> &[Point] {
        &self.points
    }

    pub fn last(&self) -> Option<&Point> {
        self.points.last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_series_keeps_its_mean_and_its_extremes_in_few_points() {
        let mut series = Series::new(100);
        (0..100_000).for_each(|n| series.push(f64::from(n), 0.0, f64::from(n % 10)));
        let points = series.points();
        assert!((50..=100).contains(&points.len()), "{}", points.len());
        assert_eq!(points.iter().map(|point| point.count).sum::<u64>(), 100_000);
        assert!(
            points
                .iter()
                .all(|point| (point.mean - 4.5).abs() < 0.1 && point.least == 0.0 && point.greatest == 9.0)
        );
        assert_eq!(points.last().unwrap().x, 99_999.0);
    }

    #[test]
    fn what_is_repeated_is_forgotten() {
        let mut series = Series::new(10);
        (1..=8).for_each(|n| series.push(f64::from(n), 0.0, 1.0));
        series.back_to(5.0);
        assert_eq!(series.last().unwrap().x, 4.0);
    }

    #[test]
    fn a_value_that_is_no_number_spoils_no_mean() {
        let mut series = Series::new(2);
        [1.0, f64::NAN, 3.0, 5.0, f64::NAN, 7.0]
            .iter()
            .enumerate()
            .for_each(|(x, value)| series.push(x as f64, 0.0, *value));
        assert!(series.points().iter().all(|point| point.mean.is_finite()), "{series:?}");
    }
}
