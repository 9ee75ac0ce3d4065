#include "types.h"

#include <ATen/ATen.h>

#include <climits>

namespace pstrain_mpi {
namespace {

using RedOp = c10d::ReduceOp::RedOpType;

// MPI has no 16-bit floats. Each sum of two is rounded to 16 bits, as Gloo and NCCL do, so that the messages stay as
// small as their sender wanted them.
template <typename Number, typename Combine>
void combine(void* in, void* inout, int* count, Combine&& with) {
  const auto* theirs = static_cast<const Number*>(in);
  auto* ours = static_cast<Number*>(inout);
  for (int i = 0; i < *count; ++i) {
    ours[i] = static_cast<Number>(with(static_cast<float>(theirs[i]), static_cast<float>(ours[i])));
  }
}
template <typename Number>
void sum(void* in, void* inout, int* count, MPI_Datatype*) {
  combine<Number>(in, inout, count, [](float a, float b) { return a + b; });
}
template <typename Number>
void product(void* in, void* inout, int* count, MPI_Datatype*) {
  combine<Number>(in, inout, count, [](float a, float b) { return a * b; });
}
template <typename Number>
void minimum(void* in, void* inout, int* count, MPI_Datatype*) {
  combine<Number>(in, inout, count, [](float a, float b) { return b < a ? b : a; });
}
template <typename Number>
void maximum(void* in, void* inout, int* count, MPI_Datatype*) {
  combine<Number>(in, inout, count, [](float a, float b) { return a < b ? b : a; });
}

struct ShortFloatOps {
  MPI_Op sum, product, min, max;

  template <typename Number>
  void make() {
    check(MPI_Op_create(&pstrain_mpi::sum<Number>, 1, &sum), "MPI_Op_create");
    check(MPI_Op_create(&pstrain_mpi::product<Number>, 1, &product), "MPI_Op_create");
    check(MPI_Op_create(&minimum<Number>, 1, &min), "MPI_Op_create");
    check(MPI_Op_create(&maximum<Number>, 1, &max), "MPI_Op_create");
  }

  void free() {
    for (MPI_Op* op : {&sum, &product, &min, &max}) {
      MPI_Op_free(op);
    }
  }
};

// Written by make_types before any operation, read by all threads after.
ShortFloatOps half_ops, bfloat16_ops;
MPI_Datatype sixteen_bytes = MPI_DATATYPE_NULL;

MPI_Datatype type_to_count_with(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return MPI_FLOAT;
    case at::kDouble: return MPI_DOUBLE;
    case at::kChar: return MPI_INT8_T;
    case at::kByte: return MPI_UINT8_T;
    case at::kShort: return MPI_INT16_T;
    case at::kUInt16: return MPI_UINT16_T;
    case at::kInt: return MPI_INT32_T;
    case at::kUInt32: return MPI_UINT32_T;
    case at::kLong: return MPI_INT64_T;
    case at::kUInt64: return MPI_UINT64_T;
    case at::kBool: return MPI_C_BOOL;
    case at::kHalf:
    case at::kBFloat16: return MPI_UINT16_T;
    case at::kComplexFloat: return MPI_C_FLOAT_COMPLEX;
    case at::kComplexDouble: return MPI_C_DOUBLE_COMPLEX;
    default: return MPI_DATATYPE_NULL;
  }
}

MPI_Op short_float_op(const ShortFloatOps& ops, RedOp op) {
  switch (op) {
    case RedOp::SUM:
    case RedOp::AVG: return ops.sum;
    case RedOp::PRODUCT: return ops.product;
    case RedOp::MIN: return ops.min;
    case RedOp::MAX: return ops.max;
    default: return MPI_OP_NULL;
  }
}

// A sum of truths is "any of them", a product "all of them".
MPI_Op bool_op(RedOp op) {
  switch (op) {
    case RedOp::SUM:
    case RedOp::MAX:
    case RedOp::BOR: return MPI_LOR;
    case RedOp::PRODUCT:
    case RedOp::MIN:
    case RedOp::BAND: return MPI_LAND;
    case RedOp::BXOR: return MPI_LXOR;
    default: return MPI_OP_NULL;
  }
}

MPI_Op number_op(at::ScalarType dtype, RedOp op) {
  const bool has_order = !at::isComplexType(dtype);
  const bool has_bits = at::isIntegralType(dtype, /*includeBool=*/false);
  switch (op) {
    case RedOp::SUM: return MPI_SUM;
    // As with Gloo: a mean of whole numbers is seldom one.
    case RedOp::AVG: return has_bits ? MPI_OP_NULL : MPI_SUM;
    case RedOp::PRODUCT: return MPI_PROD;
    case RedOp::MIN: return has_order ? MPI_MIN : MPI_OP_NULL;
    case RedOp::MAX: return has_order ? MPI_MAX : MPI_OP_NULL;
    case RedOp::BAND: return has_bits ? MPI_BAND : MPI_OP_NULL;
    case RedOp::BOR: return has_bits ? MPI_BOR : MPI_OP_NULL;
    case RedOp::BXOR: return has_bits ? MPI_BXOR : MPI_OP_NULL;
    default: return MPI_OP_NULL;
  }
}

const char* name_of(RedOp op) {
  static const char* const names[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  return op < std::size(names) ? names[op] : "unknown";
}

} // namespace

std::string text_of(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) {
    return "MPI's error " + std::to_string(code);
  }
  return std::string(text, length);
}

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) {
    C10_THROW_ERROR(DistBackendError, std::string(call) + ": " + text_of(code));
  }
}

void make_types() {
  half_ops.make<at::Half>();
  bfloat16_ops.make<at::BFloat16>();
  check(MPI_Type_contiguous(16, MPI_BYTE, &sixteen_bytes), "MPI_Type_contiguous");
  check(MPI_Type_commit(&sixteen_bytes), "MPI_Type_commit");
}

void free_types() {
  half_ops.free();
  bfloat16_ops.free();
  MPI_Type_free(&sixteen_bytes);
}

MPI_Datatype type_to_move(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1: return MPI_UINT8_T;
    case 2: return MPI_UINT16_T;
    case 4: return MPI_UINT32_T;
    case 8: return MPI_UINT64_T;
    case 16: return sixteen_bytes;
    default: TORCH_CHECK_TYPE(false, "mpi: no way to move elements of dtype ", tensor.scalar_type());
  }
}

Reduction reduction(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const auto dtype = tensor.scalar_type();
  const auto red_op = static_cast<RedOp>(op);
  MPI_Op mpi_op;
  switch (dtype) {
    case at::kHalf: mpi_op = short_float_op(half_ops, red_op); break;
    case at::kBFloat16: mpi_op = short_float_op(bfloat16_ops, red_op); break;
    case at::kBool: mpi_op = bool_op(red_op); break;
    default: mpi_op = number_op(dtype, red_op);
  }
  const MPI_Datatype type = type_to_count_with(dtype);
  TORCH_CHECK_TYPE(
      type != MPI_DATATYPE_NULL && mpi_op != MPI_OP_NULL, "mpi: no reduction ", name_of(red_op), " of dtype ", dtype);
  return {type, mpi_op};
}

int count(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(
      tensor.numel() <= INT_MAX, "mpi: a tensor of ", tensor.numel(), " elements: MPI counts up to ", INT_MAX);
  return static_cast<int>(tensor.numel());
}
} // namespace pstrain_mpi
