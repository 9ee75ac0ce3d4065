// How the members of a group find one another in MPI's world.
#pragma once

#include <mpi.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <vector>

namespace pstrain_mpi {

// The MPI rank of each member of the group; all call it.
std::vector<int> meet(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);

// On the driver's thread; all members call it.
MPI_Comm make_communicator(const std::vector<int>& members);
int largest_tag();
} // namespace pstrain_mpi
