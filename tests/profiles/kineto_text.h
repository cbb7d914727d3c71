// SPDX-License-Identifier: Apache-2.0
// Writes small traces in Kineto's form, for tests: operators nest by time on a thread, and each
// kernel has a launch inside the operator that is open when it is added.
#pragma once

#include <fmt/format.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright::profiles {

class KinetoText {
 public:
  explicit KinetoText(int rank = 0, int world = 1, int devices = 8) {
    head_ = R"({"schemaVersion": 1, "deviceProperties": [)";
    for (int i = 0; i < devices; ++i) {
      head_ += fmt::format(
          R"({}{{"id": {}, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85017755648, "numSms": 132}})",
          i > 0 ? ", " : "", i);
    }
    head_ += fmt::format(
        R"(], "distributedInfo": {{"backend": "nccl", "rank": {}, "world_size": {}, "nccl_version": "2.21.5"}}, "traceEvents": [)",
        rank, world);
  }

  /// Opens an operator at the host's time; close() ends it.
  KinetoText& open(std::string_view name, std::string_view category = "cpu_op",
                   std::string_view args = "") {
    open_.push_back({std::string(name), std::string(category), std::string(args), now_});
    now_ += 1;
    return *this;
  }
  KinetoText& close() {
    const Open top = open_.back();
    open_.pop_back();
    now_ += 1;
    event(fmt::format(
        R"("ph": "X", "cat": "{}", "name": "{}", "pid": 7, "tid": {}, "ts": {}.000, "dur": {}.000, "args": {{{}}})",
        top.category, top.name, thread_, top.begin, now_ - top.begin, top.args));
    return *this;
  }
  /// A launch inside the open operator and its kernel, which runs `us` on `stream`, after what the
  /// stream has, and not before `earliest`.
  KinetoText& kernel(std::string_view name, double us, int stream = 7, std::string_view args = "",
                     double earliest = 0) {
    ++correlation_;
    event(fmt::format(
        R"("ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": {}, "ts": {}.000, "dur": 1.000, "args": {{"correlation": {}}})",
        thread_, now_, correlation_));
    double& end = stream == 7 ? compute_end_ : other_end_;
    const double begin = std::max({static_cast<double>(now_ + 2), end, earliest});
    end = begin + us;
    event(fmt::format(
        R"("ph": "X", "cat": "kernel", "name": "{}", "pid": 0, "tid": {}, "ts": {:.3f}, "dur": {:.3f}, "args": {{"device": 0, "stream": {}, "correlation": {}{}{}}})",
        name, stream, begin, us, stream, correlation_, args.empty() ? "" : ", ", args));
    now_ += 4;
    return *this;
  }
  KinetoText& on_thread(int thread) {
    thread_ = thread;
    return *this;
  }
  KinetoText& wait(int us) {
    now_ += us;
    return *this;
  }
  std::size_t size() const { return events_.size(); }
  void raw_event(const std::string& members) { event(members); }

  std::string text() const { return head_ + events_ + "\n]}\n"; }

 private:
  struct Open {
    std::string name, category, args;
    std::int64_t begin;
  };
  void event(const std::string& members) {
    events_ += events_.empty() ? "\n{" : ",\n{";
    events_ += members;
    events_ += '}';
  }

  std::string head_, events_;
  std::vector<Open> open_;
  std::int64_t now_ = 1000;
  std::int64_t correlation_ = 100;
  int thread_ = 7;
  double compute_end_ = 0, other_end_ = 0;
};

inline std::string shapes(std::string_view dims, std::string_view types) {
  return fmt::format(R"("External id": 1, "Input Dims": {}, "Input type": {})", dims, types);
}

inline std::filesystem::path write_text(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::remove(path);  // some file systems flush a file that is written over
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

inline std::filesystem::path write_gzip(const std::filesystem::path& path, std::string_view text) {
  gzFile file = gzopen(path.c_str(), "wb1");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  return path;
}

}  // namespace shardwright::profiles
