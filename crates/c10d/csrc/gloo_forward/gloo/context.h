// As much of Gloo as ProcessGroupGloo.hpp needs: it holds this by pointer only, so its layout does not matter.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

} // namespace gloo
