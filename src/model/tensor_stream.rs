//! A safetensors file that is written from its beginning to its end, to where nothing can be written twice.

use std::io::Write;

use tch::Tensor;

use super::tensor_layout::{Layout, in_buffers};

/// What has been written so far, of a file whose [`Layout`] is known.
pub struct TensorStream<W> {
    to: W,
    layout: Layout,
    /// The place that is being filled, and how far the file goes.
    place: usize,
    at: u64,
}

impl<W: Write> TensorStream<W> {
    /// # Errors
    /// It cannot be written.
    pub fn begin(mut to: W, layout: Layout) -> Result<TensorStream<W>, String> {
        to.write_all(&layout.head).map_err(|error| error.to_string())?;
        let at = layout.head.len() as u64;
        Ok(TensorStream { to, layout, place: 0, at })
    }

    /// Writes the next numbers of the tensor `name`, which is the one that is being filled, or the next one.
    ///
    /// # Errors
    /// It cannot be written; it is not this tensor's turn; it is of another dtype, or has no room for so many.
    pub fn append(&mut self, name: &str, tensor: &Tensor) -> Result<(), String> {
        self.skip_full();
        let wrong = |message: String| format!("tensor `{name}`: {message}");
        let place = self.layout.places.get(self.place).filter(|place| place.region.name == name);
        let place = place.ok_or_else(|| wrong("it is not its turn".into()))?;
        let flat = place.take(tensor, self.at).map_err(wrong)?;
        let written = in_buffers(&flat, |piece| {
            self.to.write_all(piece)?;
            self.at += piece.len() as u64;
            Ok(())
        });
        written.map_err(wrong)
    }

    /// # Errors
    /// A tensor is not complete.
    pub fn finish(mut self) -> Result<W, String> {
        self.skip_full();
        match self.layout.places.get(self.place) {
            None => Ok(self.to),
            Some(place) => {
                Err(format!("tensor `{}`: {} bytes are missing", place.region.name, place.end - self.at))
            }
        }
    }

    fn skip_full(&mut self) {
        while self.layout.places.get(self.place).is_some_and(|place| place.end == self.at) {
            self.place += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::model::Region;

    fn layout() -> Layout {
        let region =
            |name: &str, kind, shape: &[i64]| Region { name: name.into(), kind, shape: shape.into() };
        let regions = vec![
            region("b", Kind::Float, &[2, 2]),
            region("nothing", Kind::Float, &[0, 3]),
            region("ids", Kind::Int64, &[2]),
        ];
        Layout::new(regions, &[("format", "pt".into())]).unwrap()
    }

    #[test]
    fn what_is_written_in_order_is_read_as_a_file() {
        let layout = layout();
        let bytes = layout.bytes();
        assert_eq!(layout.names().collect::<Vec<_>>(), ["ids", "b", "nothing"]);
        let mut stream = TensorStream::begin(Vec::new(), layout).unwrap();
        stream.append("ids", &Tensor::from_slice(&[3i64])).unwrap();
        stream.append("ids", &Tensor::from_slice(&[4i64])).unwrap();
        stream.append("b", &Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0])).unwrap();
        let written = stream.finish().unwrap();
        assert_eq!(written.len() as u64, bytes);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        std::fs::write(&path, written).unwrap();
        let read = crate::model::load(&path).unwrap();
        let names: Vec<&str> = read.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b", "ids", "nothing"]);
        assert_eq!(read[0].1, Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0]).view([2, 2]));
    }

    #[test]
    fn what_comes_out_of_turn_is_refused() {
        let mut stream = TensorStream::begin(Vec::new(), layout()).unwrap();
        let ids = Tensor::from_slice(&[3i64]);
        assert_eq!(stream.append("b", &ids).unwrap_err(), "tensor `b`: it is not its turn");
        stream.append("ids", &ids).unwrap();
        let many = Tensor::from_slice(&[3i64, 4]);
        let error = stream.append("ids", &many).unwrap_err();
        assert_eq!(error, "tensor `ids`: 16 bytes of Int64 came where 8 of Int64 are left");
        assert_eq!(stream.finish().unwrap_err(), "tensor `ids`: 8 bytes are missing");
    }
}
