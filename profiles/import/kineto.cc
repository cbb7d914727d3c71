// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "profiles/import/trace_reader.h"
#include "profiles/import/trace_tables.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"

namespace shardwright::profiles {
namespace {

using PlainJson = nlohmann::json;

std::int64_t number(const PlainJson& object, const char* key, std::int64_t otherwise) {
  const auto found = object.find(key);
  if (found == object.end()) return otherwise;
  if (found->is_number_integer()) return found->get<std::int64_t>();
  if (found->is_string()) return integer_of(found->get<std::string>()).value_or(otherwise);
  return otherwise;
}

std::string text(const PlainJson& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string{};
}

std::string date_of(std::int64_t unix_s) {
  const std::time_t at = unix_s;
  std::tm parts{};
  if (gmtime_r(&at, &parts) == nullptr) return {};
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

class KinetoReader {
 public:
  explicit KinetoReader(const std::filesystem::path& path)
      : path_(path), stream_(path), reader_(stream_) {
    tables_.source.file = path.string();
    tables_.source.format = "kineto";
  }

  TraceTables read() {
    for (auto item = reader_.next(); item != TraceReader::Item::kEnd; item = reader_.next()) {
      if (item == TraceReader::Item::kHeader) {
        header(reader_.header());
      } else {
        ++events_;
        if (tables_.full()) {
          beyond();
          break;
        }
        event();
      }
    }
    finish();
    return std::move(tables_);
  }

 private:
  void header(const JsonMember& member) {
    if (member.key == "deviceProperties") {
      const PlainJson devices = parse_json(member.value, false);
      if (!devices.is_array() || devices.empty() || !devices[0].is_object()) return;
      tables_.device_count = static_cast<int>(std::min<std::size_t>(devices.size(), 1024));
      tables_.source.gpu = text(devices[0], "name");
      tables_.source.sm_count = number(devices[0], "numSms", 0);
      tables_.source.memory_bytes = number(devices[0], "totalGlobalMem", 0);
    } else if (member.key == "distributedInfo") {
      const PlainJson job = parse_json(member.value, false);
      if (!job.is_object()) return;
      tables_.source.rank =
          static_cast<std::int32_t>(std::clamp<std::int64_t>(number(job, "rank", 0), 0, 1 << 24));
      tables_.source.world_size =
          std::clamp<std::int64_t>(number(job, "world_size", 0), 0, 1 << 24);
      const std::string nccl = text(job, "nccl_version");
      if (!nccl.empty()) tables_.source.software = "NCCL " + nccl;
    } else if (member.key == "baseTimeNanoseconds") {
      base_ns_ = integer_of(member.value).value_or(0);
    }
  }

  /// The thread or stream tracks are named by pid and tid, which may be numbers or words.
  std::uint32_t thread_of(const JsonMembers& event) {
    key_.assign(event.text("pid"));
    key_ += '/';
    key_ += event.text("tid");
    return threads_.id(key_);
  }

  void event() {
    const JsonMembers& e = reader_.event();
    if (e.text("ph") != "X") return;
    const std::string_view category = e.text("cat");
    enum class Kind { kRange, kCall, kKernel, kCopy, kSet };
    Kind kind;
    if (category == "cpu_op" || category == "user_annotation" || category == "Operator") {
      kind = Kind::kRange;
    } else if (category == "cuda_runtime" || category == "cuda_driver" || category == "Runtime") {
      kind = Kind::kCall;
    } else if (category == "kernel" || category == "Kernel") {
      kind = Kind::kKernel;
    } else if (category == "gpu_memcpy" || category == "Memcpy") {
      kind = Kind::kCopy;
    } else if (category == "gpu_memset" || category == "Memset") {
      kind = Kind::kSet;
    } else {
      return;
    }
    const auto begin = microseconds_to_ns(e.text("ts"));
    const auto duration = microseconds_to_ns(e.text("dur"));
    constexpr std::int64_t kFar = std::int64_t{1} << 61;
    if (!begin || !duration || *begin < -kFar || *begin > kFar || *duration > kFar) {
      count_left_out(tables_.left_out, "events without a readable time", 0);
      return;
    }
    if (*duration < 0) {
      count_left_out(tables_.left_out, "events of negative duration", 0);
      return;
    }
    if (first_ns_ < 0 || *begin < first_ns_) first_ns_ = *begin;
    const Nanoseconds end = *begin + *duration;
    const JsonMembers& args = reader_.args();
    if (kind == Kind::kRange) {
      add_range(e, args, *begin, end);
    } else if (kind == Kind::kCall) {
      RuntimeCall call;
      call.begin = *begin;
      call.end = end;
      call.correlation = integer_of(args.text("correlation")).value_or(0);
      call.thread = thread_of(e);
      call.name = tables_.names.id(e.text("name"));
      tables_.calls.push_back(call);
    } else {
      DeviceSpan span;
      span.work = kind == Kind::kKernel ? DeviceWork::kKernel
                  : kind == Kind::kCopy ? DeviceWork::kCopy
                                        : DeviceWork::kSet;
      add_device(span, e, args, *begin, end);
    }
  }

  void add_range(const JsonMembers& e, const JsonMembers& args, Nanoseconds begin,
                 Nanoseconds end) {
    HostRange range;
    range.begin = begin;
    range.end = end;
    range.thread = thread_of(e);
    range.name = tables_.names.id(e.text("name"));
    const JsonMember* dims = args.find("Input Dims");
    if (dims == nullptr) dims = args.find("Input dims");
    if (dims != nullptr) {
      const JsonMember* types = args.find("Input type");
      const JsonMember* values = args.find("Concrete Inputs");
      key_.assign(dims->value);
      key_ += kPartEnd;
      if (types != nullptr) key_ += types->value;
      key_ += kPartEnd;
      if (values != nullptr) key_ += values->value;
      range.shapes = tables_.names.id(key_);
      tables_.has_shapes = true;
    }
    range.comm = comm_of(args);
    tables_.ranges.push_back(range);
  }

  void add_device(DeviceSpan span, const JsonMembers& e, const JsonMembers& args, Nanoseconds begin,
                  Nanoseconds end) {
    span.begin = begin;
    span.end = end;
    span.name = tables_.names.id(e.text("name"));
    span.correlation = integer_of(args.text("correlation")).value_or(0);
    const auto device =
        integer_of(args.find("device") != nullptr ? args.text("device") : e.text("pid"));
    const auto stream =
        integer_of(args.find("stream") != nullptr ? args.text("stream") : e.text("tid"));
    span.device = static_cast<std::int32_t>(std::clamp<std::int64_t>(device.value_or(0), 0, 4096));
    span.stream =
        static_cast<std::int32_t>(std::clamp<std::int64_t>(stream.value_or(0), -1, 1 << 30));
    span.bytes = std::clamp<std::int64_t>(integer_of(args.text("bytes")).value_or(0), 0,
                                          std::int64_t{1} << 50);
    span.from_graph = integer_of(args.text("graph node id")).value_or(0) != 0;
    span.comm = comm_of(args);
    tables_.device.push_back(span);
  }

  std::uint32_t comm_of(const JsonMembers& args) {
    const JsonMember* collective = args.find("Collective name");
    if (collective == nullptr) return kNoIndex;
    const auto elements = [&](const char* now, const char* before) {
      const JsonMember* found = args.find(now);
      if (found == nullptr) found = args.find(before);
      if (found == nullptr) return std::int64_t{-1};
      return std::clamp<std::int64_t>(integer_of(found->value).value_or(-1), -1,
                                      std::int64_t{1} << 46);
    };
    CommRecord comm;
    comm.collective = tables_.names.id(collective->value);
    comm.dtype = tables_.names.id(args.text("dtype"));
    comm.group = tables_.names.id(args.text("Process Group Name"));
    comm.ranks = tables_.names.id(args.text("Process Group Ranks"));
    comm.in_elements = elements("In msg nelems", "In msg size");
    comm.out_elements = elements("Out msg nelems", "Out msg size");
    comm.group_size = std::clamp<std::int64_t>(integer_of(args.text("Group size")).value_or(0), 0,
                                               std::int64_t{1} << 24);
    comm.sequence = integer_of(args.text("Seq")).value_or(-1);
    tables_.comms.push_back(comm);
    return static_cast<std::uint32_t>(tables_.comms.size() - 1);
  }

  void beyond() {
    tables_.notes.push_back(
        fmt::format("{} holds more than {} operations; what stands after byte {} was left out.",
                    path_.string(), TraceTables::kMaxRecords, reader_.position()));
  }

  void finish() {
    const std::string file = path_.string();
    tables_.source.truncated = reader_.truncated();
    if (events_ == 0) {
      throw Error(reader_.problem().empty()
                      ? fmt::format("{} holds no trace event, expected a Chrome trace with "
                                    "\"traceEvents\" as torch.profiler writes it.",
                                    file)
                      : fmt::format("{} is no trace: {}.", file, reader_.problem()));
    }
    if (stream_.damaged()) {
      tables_.notes.push_back(
          fmt::format("{} is damaged or ends early: its compressed data could be read up to byte "
                      "{} of the trace, {} events.",
                      file, reader_.position(), events_));
    } else if (reader_.truncated()) {
      tables_.notes.push_back(
          fmt::format("{} ends in the middle of the trace, after {} events.", file, events_));
    }
    if (!reader_.problem().empty()) {
      tables_.source.truncated = true;
      tables_.notes.push_back(
          fmt::format("{}: {}; the {} events before are used.", file, reader_.problem(), events_));
    }
    if (reader_.skipped() > 0) {
      count_left_out(tables_.left_out, "members too large or of the wrong kind for a trace", 0,
                     reader_.skipped());
    }
    if (tables_.names.refused() > 0) {
      tables_.notes.push_back(
          fmt::format("{} holds more different names and shapes than are kept; {} were dropped.",
                      file, tables_.names.refused()));
    }
    std::int64_t unix_ns = 0;
    if (first_ns_ >= 0 && !__builtin_add_overflow(base_ns_, first_ns_, &unix_ns)) {
      const std::int64_t unix_s = unix_ns / 1'000'000'000;
      // Before 2015 there was no such profiler: the clock of the trace is not that of the world.
      if (unix_s > 1'420'000'000 && unix_s < 4'000'000'000) {
        tables_.source.date = date_of(unix_s);
      }
    }
  }

  std::filesystem::path path_;
  ByteStream stream_;
  TraceReader reader_;
  TraceTables tables_;
  NameTable threads_{std::size_t{8} << 20};
  std::string key_;
  std::int64_t events_ = 0;
  std::int64_t base_ns_ = 0;
  Nanoseconds first_ns_ = -1;
};

}  // namespace

TraceTables read_kineto(const std::filesystem::path& path) {
  return KinetoReader(path).read();
}

}  // namespace shardwright::profiles
