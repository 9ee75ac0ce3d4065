// Torch's types and reductions in MPI's words.
#pragma once

#include <ATen/core/Tensor.h>
#include <mpi.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <string>

namespace pstrain_mpi {

// Throws with MPI's own text unless `code` is MPI_SUCCESS.
void check(int code, const char* call);
std::string text_of(int code);

// Makes the types and operations below that MPI does not have. On the driver's thread, once, after MPI_Init.
void make_types();
// Before MPI_Finalize.
void free_types();

// For moving elements without looking at them: any dtype.
MPI_Datatype type_to_move(const at::Tensor& tensor);

struct Reduction {
  MPI_Datatype type;
  MPI_Op op;
};
// Throws where the dtype has no such reduction. AVG is a SUM here: who calls divides.
Reduction reduction(const at::Tensor& tensor, const c10d::ReduceOp& op);

// The number of elements; throws where MPI cannot count so many.
int count(const at::Tensor& tensor);
} // namespace pstrain_mpi
