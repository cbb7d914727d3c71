// SPDX-License-Identifier: Apache-2.0
// The time of a list of operations (body.h) on a rank: two in-order streams, compute and
// communication, and a host that issues both.
//
// A blocking collective starts when compute has come so far and holds it up; one that runs beside
// starts at the same point and slows what computes meanwhile (fewer SMs, shared memory bandwidth),
// until an operation joins it. One that runs beside another micro-batch costs the SMs that it
// holds, and what of it is longer than the list. The host issues ahead of the device, so a list
// takes the longer of its device time and its launches. Where the host waits for a result the
// device runs dry: from there on a kernel starts when it has been issued and those before it have
// ended. What an operation costs says sim/cost/op_cost.h.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "profiles/profile.h"
#include "sim/accounting.h"
#include "sim/cost/op_cost.h"
#include "sim/parallel/body.h"

namespace shardwright::sim {

struct BodyTime {
  double device_s = 0;   // compute stream, waits for collectives included
  double host_s = 0;     // launches
  double delayed_s = 0;  // of device_s: what a schedule may move (weight gradients)
  double flops = 0;
  double beside_others_s = 0;  // of what waits for another micro-batch's operations to hide it
  std::array<double, kCommGroups> exposed_s{};  // of device_s, by group
  CommunicationByGroup sent{};

  double exposed() const;
  void add(const BodyTime& other, double times);
};

/// When an operation of a list runs, from the start of the list.
struct OpRun {
  std::size_t op = 0;  // of the list
  bool communication = false;
  double begin_s = 0, end_s = 0;
};

class BodyCosts : public OpCosts {
 public:
  using OpCosts::OpCosts;

  /// Groups of what follows, and what of it graphs hold.
  void place(const Layout& layout, CudaGraphs graphs = CudaGraphs::kNone);

  /// `runs`, where given, takes when each operation runs. `resident`: collectives of other layers
  /// that are there all the time.
  BodyTime time(const Ops& ops, bool backward, std::vector<OpRun>* runs = nullptr,
                const Sharing& resident = {});

 private:
  struct Streams;
  void run(const Op& op, Streams& streams, BodyTime& result);

  CudaGraphs graphs_ = CudaGraphs::kNone;
};

}  // namespace shardwright::sim
