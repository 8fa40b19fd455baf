//! Medians, percentiles, ratios.

/// The middle of the values; the mean of the two in the middle when their number is even.
///
/// # Panics
/// `values` is empty. It never is, since every measurement takes at least one round.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], values[middle])
    } else {
        values[middle]
    }
}

/// The smallest value that at least `percent` of all values do not exceed (nearest rank).
///
/// # Panics
/// `sorted` is empty.
pub(crate) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted[rank.max(1) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_one_wild_round() {
        assert!((median([3.0, 1000.0, 1.0]) - 3.0).abs() < f64::EPSILON);
        assert!((median([4.0, 2.0]) - 3.0).abs() < f64::EPSILON);
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert!((percentile(&values, 50) - 100.0).abs() < f64::EPSILON);
        assert!((percentile(&values, 99) - 198.0).abs() < f64::EPSILON);
        assert!((percentile(&values[..1], 99) - 1.0).abs() < f64::EPSILON);
    }
}
