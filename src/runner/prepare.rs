//! From a dataset's fields as they are to fields as modules and the loss take them.

use anyhow::{Context as _, Result, bail};
use tch::{Kind, Tensor};

use super::samples::Samples;
use crate::human::counted;
use crate::job::{Field, FieldName, Normalize, Taken, Training, did_you_mean};
use crate::layers::InputDtype;
use crate::plugin::{self, DatasetInfo, is_floating, kind_name};

/// Which fields are taken, and how they are changed.
#[derive(Clone, Debug)]
pub(super) struct Prepare {
    fields: Vec<PrepareField>,
}

#[derive(Clone, Debug)]
struct PrepareField {
    /// Its place among the data's.
    at: usize,
    name: String,
    /// It is taken in several ways: none writes over it.
    shared: bool,
    /// What is wanted of a field; of a target nothing is.
    wanted: Option<Wanted>,
}

/// What a module takes.
#[derive(Clone, Debug)]
struct Wanted {
    /// The shape of one sample.
    shape: Vec<i64>,
    kind: Kind,
    normalize: Option<Normalize>,
    /// The key that says the dtype.
    dtype_key: String,
}

impl Prepare {
    /// # Errors
    /// The data do not fit the job; both ends are named.
    pub fn new(job: &Training, info: &DatasetInfo) -> Result<Prepare> {
        if let Some(field) = info.fields.iter().find(|field| job.named_outputs.contains(&field.name)) {
            bail!(
                "`{0}` is a module of this job and a field of the data, so it is not clear what a `from` means by it\n  \
                 hint: give the module another name",
                field.name
            );
        }
        let places: Vec<usize> =
            job.fields.iter().map(|field| find(job, info, &field.name, &field.key)).collect::<Result<_>>()?;
        let normalize = job.data.normalize.as_ref();
        let normalized: Vec<usize> = match normalize {
            None => Vec::new(),
            Some(by) => {
                let key = "data.normalize.fields";
                by.fields.iter().map(|name| find(job, info, name, key)).collect::<Result<_>>()?
            }
        };
        let field = |(field, &at): (&Field, &usize)| {
            let wanted = match &field.taken {
                None => None,
                Some(taken) => Some(Wanted {
                    shape: taken.signal.shape.clone(),
                    kind: fitting(&info.fields[at], taken)?,
                    normalize: normalize.filter(|_| normalized.contains(&at)).cloned(),
                    dtype_key: taken.dtype_key.clone(),
                }),
            };
            let shared = places.iter().filter(|&&other| other == at).count() > 1;
            Ok(PrepareField { at, name: info.fields[at].name.clone(), shared, wanted })
        };
        let fields: Vec<PrepareField> = job.fields.iter().zip(&places).map(field).collect::<Result<_>>()?;
        for &at in &normalized {
            if !fields.iter().any(|field| field.at == at && field.wanted.is_some()) {
                bail!(
                    "`data.normalize` is for field `{}` of the data, which no module takes\n  \
                     hint: name in data.normalize.fields those that it is for",
                    info.fields[at].name
                );
            }
        }
        Ok(Prepare { fields })
    }

    /// The fields of a batch, of which a dataset has given all.
    ///
    /// # Errors
    /// Numbers that the wanted dtype does not have.
    pub fn samples(&self, given: &[Tensor]) -> Result<Samples> {
        let count = given.first().and_then(|field| field.size().first().copied()).unwrap_or(0);
        let fields = self.fields.iter().map(|field| {
            let prepared = field.prepare(&given[field.at], count);
            prepared.with_context(|| match &field.wanted {
                Some(_) => format!("field `{}`", field.name),
                None => format!("the target, field `{}`", field.name),
            })
        });
        Ok(Samples { fields: fields.collect::<Result<_>>()?, count: count as u64 })
    }
}

impl PrepareField {
    fn prepare(&self, values: &Tensor, count: i64) -> Result<Tensor> {
        let Some(Wanted { shape, kind, normalize, dtype_key }) = &self.wanted else {
            return with_loss_kind(values);
        };
        let shape: Vec<i64> = [count].into_iter().chain(shape.iter().copied()).collect();
        let taken = exactly(&values.f_reshape(&shape)?, *kind, Some(dtype_key))?;
        let Some(by) = normalize else { return Ok(taken) };
        let in_use = self.shared && taken.data_ptr() == values.data_ptr();
        normalized(if in_use { taken.f_detach_copy()? } else { taken }, by)
    }
}

/// The dtype in which a module takes a field.
///
/// # Errors
/// They do not fit; both are named.
fn fitting(field: &plugin::Field, taken: &Taken) -> Result<Kind> {
    let Taken { signal, module, shape_key, dtype_key } = taken;
    let (has, wants) = (field.shape.iter().product::<i64>(), signal.elements());
    if has.unsigned_abs() != wants {
        bail!(
            "a sample of field `{}` has the shape {:?} ({}); module `{module}` takes {:?} ({wants})\n  \
             hint: set {shape_key} to the shape of the data",
            field.name,
            field.shape,
            counted(has.unsigned_abs(), "element"),
            signal.shape,
        );
    }
    let kind = match signal.dtype {
        InputDtype::Float32 => Kind::Float,
        InputDtype::Int64 => Kind::Int64,
    };
    if kind == Kind::Int64 && is_floating(field.dtype) {
        bail!(
            "field `{}` of the data is {}, and module `{module}` takes whole numbers ({dtype_key} = \"int64\"): they \
             would be rounded\n  \
             hint: let the dataset give int64 (`csv`: feature_dtype = \"int64\", or dtype = \"int64\" in a field of \
             `fields`, as in `parquet`; `npy`: save x.astype(\"int64\"))",
            field.name,
            kind_name(field.dtype),
        );
    }
    Ok(kind)
}

/// The place of a field among the data's; `key` names it.
fn find(job: &Training, info: &DatasetInfo, name: &FieldName, key: &str) -> Result<usize> {
    let names = || info.fields.iter().map(|field| format!("`{}`", field.name)).collect::<Vec<_>>().join(", ");
    match name {
        FieldName::Named(name) => {
            let at = info.fields.iter().position(|field| field.name == *name);
            at.with_context(|| {
                let modules = job.modules.iter().map(|module| module.written_name());
                let meant = match did_you_mean(
                    name,
                    modules.filter(|_| key.ends_with("from") || key.contains("from[")),
                ) {
                    Some(module) => format!("; did you mean module `{module}`?"),
                    None => String::new(),
                };
                format!(
                    "`{key}` = \"{name}\" is not a field of the data\n  hint: the fields are {}{meant}",
                    names()
                )
            })
        }
        FieldName::Nth(position) if *position < info.fields.len() => Ok(*position),
        FieldName::Nth(_) => bail!(
            "the data have only {}, and `{key}` is not given\n  hint: name the field in `{key}`",
            names()
        ),
    }
}

/// Classes are int64 to libtorch, numbers float32.
fn with_loss_kind(target: &Tensor) -> Result<Tensor> {
    let kind = match target.kind() {
        Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16 => Kind::Float,
        _ => Kind::Int64,
    };
    exactly(target, kind, None)
}

/// `values` in another dtype. Fractions may lose digits, as in all of float32; whole numbers stay what they are, and nothing
/// becomes infinite. `dtype_key`: what would have asked for int64.
fn exactly(values: &Tensor, kind: Kind, dtype_key: Option<&str>) -> Result<Tensor> {
    let converted = values.f_to_kind(kind)?;
    let lost = match (values.kind(), kind) {
        // The first one that float32 has not is 16,777,217.
        (Kind::Int | Kind::Int64, Kind::Float) => values.f_ne_tensor(&converted.f_to_kind(values.kind())?)?,
        (Kind::Double, Kind::Float) => converted.f_isinf()?.f_logical_xor(&values.f_isinf()?)?,
        _ => return Ok(converted),
    };
    if lost.f_any()?.f_int64_value(&[])? == 0 {
        return Ok(converted);
    }
    let first = values.f_masked_select(&lost)?.f_double_value(&[0])?;
    let ids = match dtype_key.filter(|_| !is_floating(values.kind())) {
        Some(key) => format!("; if they are ids, set {key} = \"int64\""),
        None => String::new(),
    };
    bail!(
        "the data hold {first} as {}, and float32, which is wanted, cannot\n  \
         hint: scale such values in the dataset{ids}",
        kind_name(values.kind())
    )
}

/// `(x / scale - mean) / std`, folded into one multiplication and one addition where all channels are alike.
/// Writes over `input`, which nobody else holds.
fn normalized(mut input: Tensor, by: &Normalize) -> Result<Tensor> {
    if let ([mean], [std]) = (by.mean.as_slice(), by.std.as_slice()) {
        let scaled = input.f_mul_scalar_(1.0 / (by.scale * std))?.f_sub_scalar_(mean / std)?;
        return Ok(scaled);
    }
    let channels = by.mean.len() as i64;
    let dims = input.dim();
    let mut shape = vec![1; dims];
    if dims < 2 || input.size()[1] != channels {
        bail!("`data.normalize` has {channels} channels; a sample has the shape {:?}", &input.size()[1..]);
    }
    shape[1] = channels;
    let per_channel =
        |values: &[f64]| Tensor::f_from_slice(values)?.f_to_kind(Kind::Float)?.f_reshape(&shape);
    let (mean, std) = (per_channel(&by.mean)?, per_channel(&by.std)?);
    Ok(input.f_div_scalar_(by.scale)?.f_sub_(&mean)?.f_div_(&std)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(scale: f64, mean: Vec<f64>, std: Vec<f64>) -> Normalize {
        Normalize { fields: Vec::new(), scale, mean, std }
    }

    #[test]
    fn normalising_by_one_channel_equals_the_formula() {
        let by = by(255.0, vec![0.1307], vec![0.3081]);
        let pixels = Tensor::from_slice(&[0.0f32, 51.0, 255.0]).reshape([3, 1]);
        let values = normalized(pixels, &by).unwrap();
        let expected = Tensor::from_slice(&[
            ((0.0 - 0.1307) / 0.3081) as f32,
            ((0.2 - 0.1307) / 0.3081) as f32,
            ((1.0 - 0.1307) / 0.3081) as f32,
        ])
        .reshape([3, 1]);
        assert!(values.allclose(&expected, 1e-6, 1e-6, false), "{values:?}");
    }

    #[test]
    fn normalising_by_channel_takes_each_channels_own() {
        let by = by(1.0, vec![1.0, 2.0], vec![2.0, 4.0]);
        let values = normalized(Tensor::from_slice(&[3.0f32, 10.0]).reshape([1, 2, 1]), &by).unwrap();
        assert_eq!(Vec::<f32>::try_from(values.flatten(0, -1)).unwrap(), [1.0, 2.0]);
    }

    #[test]
    fn a_target_that_is_the_input_stays_as_the_data_have_it() {
        let field = |wanted| PrepareField { at: 0, name: "x".into(), shared: true, wanted };
        let normalize = Some(by(10.0, vec![1.0], vec![2.0]));
        let wanted =
            |normalize| Wanted { shape: vec![2], kind: Kind::Float, normalize, dtype_key: String::new() };
        let fields = vec![field(Some(wanted(normalize))), field(Some(wanted(None))), field(None)];
        let given = [Tensor::from_slice(&[10.0f32, 30.0]).reshape([1, 2])];
        let samples = Prepare { fields }.samples(&given).unwrap();
        let values = |field: usize| Vec::<f32>::try_from(samples.fields[field].flatten(0, -1)).unwrap();
        assert_eq!((values(0), values(1), values(2)), (vec![0.0, 1.0], vec![10.0, 30.0], vec![10.0, 30.0]));
    }

    #[test]
    fn whole_numbers_that_float32_has_not_are_refused_and_others_kept() {
        let large = |last: i64| Tensor::from_slice(&[1, 1 << 24, last]);
        let kept = exactly(&large((1 << 24) + 2), Kind::Float, Some("input_dtype")).unwrap();
        assert_eq!(Vec::<f32>::try_from(kept).unwrap(), [1.0, 16_777_216.0, 16_777_218.0]);
        let error = exactly(&large((1 << 24) + 1), Kind::Float, Some("input_dtype")).unwrap_err().to_string();
        assert!(error.starts_with("the data hold 16777217 as int64, and float32"), "{error}");
        let same = exactly(&large((1 << 24) + 1), Kind::Int64, Some("input_dtype")).unwrap();
        assert_eq!(Vec::<i64>::try_from(same).unwrap()[2], 16_777_217);
    }

    #[test]
    fn numbers_beyond_float32_are_refused_and_fractions_rounded() {
        let rounded =
            exactly(&Tensor::from_slice(&[0.1f64, f64::INFINITY]), Kind::Float, Some("input_dtype")).unwrap();
        assert_eq!(Vec::<f32>::try_from(rounded).unwrap(), [0.1, f32::INFINITY]);
        let error = exactly(&Tensor::from_slice(&[0.1f64, 1e300]), Kind::Float, Some("input_dtype"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("as float64, and float32") && !error.contains("int64"), "{error}");
    }

    #[test]
    fn a_wrong_count_of_channels_says_what_came() {
        let by = by(1.0, vec![1.0, 2.0], vec![2.0, 4.0]);
        let error = normalized(Tensor::zeros([1, 3], (Kind::Float, tch::Device::Cpu)), &by).unwrap_err();
        assert_eq!(error.to_string(), "`data.normalize` has 2 channels; a sample has the shape [3]");
    }
}
