// As much of Gloo as ProcessGroupGloo.hpp needs: it holds these by pointer only, so their layout does not matter.
#pragma once

namespace gloo::transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

} // namespace gloo::transport
