#include "meeting.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>

#include "driver.h"
#include "types.h"

namespace pstrain_mpi {

std::vector<int> meet(c10d::Store& store, int rank, int size, milliseconds timeout) {
  int own = 0, world = 0;
  Driver::get().call([&] {
    check(MPI_Comm_rank(MPI_COMM_WORLD, &own), "MPI_Comm_rank");
    check(MPI_Comm_size(MPI_COMM_WORLD, &world), "MPI_Comm_size");
  });
  TORCH_CHECK(
      world >= size, "mpi: a group of ", size, " ranks, but MPI knows ", world, world == 1 ? " process" : " processes",
      ": start the ranks with `mpirun -n ", size, "`, that of " PSTRAIN_MPI);
  // As Gloo's keys: from them the crate knows who has not come.
  const auto key = [](int rank) { return "0/" + std::to_string(rank); };
  store.set(key(rank), std::to_string(own));
  std::vector<int> members;
  const auto deadline = Clock::now() + timeout;
  for (int other = 0; other < size; ++other) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    try {
      store.wait({key(other)}, std::max(left, milliseconds(1)));
    } catch (const c10::Error& error) {
      TORCH_CHECK(
          false, "mpi: rank ", other, " of ", size, " did not come to the group: ", error.what_without_backtrace());
    }
    members.push_back(std::stoi(store.get_to_str(key(other))));
    for (int before = 0; before < other; ++before) {
      TORCH_CHECK(
          members[before] != members[other], "mpi: ranks ", before, " and ", other, " of the group are both MPI's rank ",
          members[other], ": each needs a process of its own, and one mpirun has to start them all");
    }
  }
  return members;
}

MPI_Comm make_communicator(const std::vector<int>& members) {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Group world = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
  check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check(MPI_Group_incl(world, static_cast<int>(members.size()), members.data(), &group), "MPI_Group_incl");
  // Blocks until all members are here, and by `meet` they all are.
  check(MPI_Comm_create_group(MPI_COMM_WORLD, group, /*tag=*/0, &comm), "MPI_Comm_create_group");
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return comm;
}

int largest_tag() {
  int* largest = nullptr;
  int is_set = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest, &is_set), "MPI_Comm_get_attr");
  return is_set ? *largest : 32767; // what every MPI takes
}
} // namespace pstrain_mpi
