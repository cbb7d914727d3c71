// SPDX-License-Identifier: Apache-2.0
// Shows a profiler of others what the host enqueues: named ranges of the calling thread.
#pragma once

#include <string>

namespace shardwright::exec {

class RangeMarker {
 public:
  virtual ~RangeMarker() = default;
  virtual void begin(const std::string& name) = 0;
  virtual void end() = 0;

  /// A range from its construction to its destruction; none without a marker.
  class Scope {
   public:
    Scope(RangeMarker* marker, const std::string& name) : marker_(marker) {
      if (marker_ != nullptr) marker_->begin(name);
    }
    ~Scope() {
      if (marker_ != nullptr) marker_->end();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    RangeMarker* marker_;
  };
};

}  // namespace shardwright::exec
