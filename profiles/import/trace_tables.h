// SPDX-License-Identifier: Apache-2.0
// A trace of a PyTorch process as tables, whichever profiler recorded it: what ran on devices, the
// calls that launched it, and the operators and annotations around those calls.
//
// Readers (kineto.cc, nsys.cc) fill the tables; observe.h makes
// observations of them. Names and shapes are stored once. Everything has a bound, so that a hostile
// or an endless file takes bounded memory; what lies beyond is counted.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "profiles/observation.h"
#include "sim/core/units.h"

namespace shardwright::profiles {

using NameId = std::uint32_t;  // 0: the empty text
inline constexpr std::uint32_t kNoIndex = 0xffffffffU;

/// Texts, each stored once, up to a total length.
class NameTable {
 public:
  explicit NameTable(std::size_t max_bytes = std::size_t{64} << 20);
  /// The empty text stands for what no longer fits.
  NameId id(std::string_view text);
  const std::string& text(NameId id) const { return texts_[id]; }
  std::size_t size() const { return texts_.size(); }
  std::int64_t refused() const { return refused_; }

 private:
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, NameId> ids_;
  std::size_t left_;
  std::int64_t refused_ = 0;
};

/// An operator or an annotation on a host thread.
struct HostRange {
  Nanoseconds begin = 0, end = 0;
  std::uint32_t thread = 0;
  NameId name = 0;
  NameId shapes = 0;                // texts of the trace; see below
  std::uint32_t comm = kNoIndex;    // index into TraceTables::comms
  std::uint32_t parent = kNoIndex;  // set by join
};

/// A call of the CUDA runtime or driver.
struct RuntimeCall {
  Nanoseconds begin = 0, end = 0;
  std::int64_t correlation = 0;
  std::uint32_t thread = 0;
  NameId name = 0;
  std::uint32_t range = kNoIndex;  // innermost HostRange around it; set by join
};

enum class DeviceWork : std::uint8_t { kKernel, kCopy, kSet };

/// A kernel, copy or memset on a device.
struct DeviceSpan {
  Nanoseconds begin = 0, end = 0;
  std::int64_t correlation = 0;  // 0: unknown
  std::int64_t bytes = 0;        // of copies and sets
  NameId name = 0;
  std::uint32_t comm = kNoIndex;
  std::uint32_t call = kNoIndex;  // index into calls; set by join
  std::int32_t device = 0;
  std::int32_t stream = 0;
  DeviceWork work = DeviceWork::kKernel;
  bool from_graph = false;
};

/// What PyTorch recorded of a collective.
struct CommRecord {
  NameId collective = 0;  // "_allgather_base"
  NameId dtype = 0;       // "BFloat16"
  NameId group = 0;       // name of the process group
  NameId ranks = 0;       // "[0, 1, 2, 3]"
  std::int64_t in_elements = -1, out_elements = -1;
  std::int64_t group_size = 0;
  std::int64_t sequence = -1;
};

struct TraceTables {
  /// Records of all kinds together that are kept: 0.4 GB when all are of the largest kind.
  static constexpr std::size_t kMaxRecords = std::size_t{6} << 20;

  ObservationSource source;
  NameTable names;
  std::deque<HostRange> ranges;
  std::deque<RuntimeCall> calls;
  std::deque<DeviceSpan> device;
  std::deque<CommRecord> comms;
  int device_count = 0;  // devices that the process saw
  bool has_shapes = false;
  std::vector<LeftOut> left_out;
  std::vector<std::string> notes;

  std::size_t records() const {
    return ranges.size() + calls.size() + device.size() + comms.size();
  }
  bool full() const { return records() >= kMaxRecords; }
};

/// Counts under `what`, making the entry when it is new.
void count_left_out(std::vector<LeftOut>& list, const std::string& what, double seconds,
                    std::int64_t count = 1);

// The shapes and types of an operator's arguments, from the texts that a profiler records.
//
// "Input Dims" is a list with one entry per argument: the extents of a tensor, a list of such for a
// list of tensors, or nothing. "Input type" names their types in the same order, "Concrete Inputs"
// (newer) the values of what is no tensor. Texts that are not of this form give no arguments.

struct TensorShape {
  std::vector<std::int64_t> dims;
  int element_bytes = 0;  // 0: unknown type

  std::int64_t elements() const;  // saturates
  double bytes() const { return static_cast<double>(elements()) * element_bytes; }
};

struct Argument {
  std::vector<TensorShape> tensors;  // none: no tensor; several: a list of tensors
  std::string value;                 // of what is no tensor, where it was recorded
  bool is_list = false;

  bool is_tensor() const { return tensors.size() == 1 && !is_list; }
};

/// Ends DIMS and TYPES in a recorded text; JSON may hold any white space but not this.
inline constexpr char kPartEnd = '\x1e';

/// `recorded` is DIMS, TYPES and VALUES with kPartEnd between them, as HostRange::shapes.
std::vector<Argument> parse_arguments(std::string_view recorded);

/// Bytes of one element of the type "c10::BFloat16", "float", "BFloat16"; 0 when it is unknown.
int element_bytes_of(std::string_view type);

// Ties the tables of a trace together: each kernel to the call that launched it, each call to the
// operator it was made in, each operator to the one around it.
//
// A call and its kernel share a correlation id. An id that occurs more than once (several processes
// or devices in one file) means the latest call that began before the kernel. Operators and calls
// nest by time on their thread, which also holds for traces whose "External id" is of no use.

struct JoinCounts {
  std::int64_t without_call = 0;  // device work whose call is not in the trace
  std::int64_t ambiguous = 0;     // calls that share a correlation id with another
};

/// Sets HostRange::parent, RuntimeCall::range and DeviceSpan::call. Sorts ranges by thread and
/// time.
JoinCounts join(TraceTables& tables);

// Reads the trace of torch.profiler (Kineto's Chrome JSON) into tables.
//
// Which members and categories are read, and what is assumed of them, is in README.md beside this
// file. Events of other categories are passed over; events that contradict themselves (an end
// before the begin, a kernel without a duration) are counted as left out.

/// Throws Error when the file cannot be read or holds no event at all.
TraceTables read_kineto(const std::filesystem::path& path);

// Reads the database that `nsys export --type sqlite` writes into tables.
//
// Kernels, copies and sets with their correlation ids, calls of the runtime, and NVTX ranges: those
// of torch.autograd.profiler.emit_nvtx(record_shapes=True) carry operators and shapes as
// "aten::mm, seq = 7, sizes = [[4096, 512], [512, 64]]", without types: operands are taken to be
// bf16, and copies and element-wise operators, whose bytes need types, stay unattributed. NCCL's
// kernels carry no sizes there.

/// Throws Error when the file is no such database, or with ExitCode::kMissingDevice when this
/// program was built without SQLite.
TraceTables read_nsys(const std::filesystem::path& path);

}  // namespace shardwright::profiles
