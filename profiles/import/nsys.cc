// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "profiles/import/trace_tables.h"
#include "sim/core/base/error.h"

#ifdef SHARDWRIGHT_HAS_SQLITE
#include <sqlite3.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#endif

namespace shardwright::profiles {

#ifndef SHARDWRIGHT_HAS_SQLITE

TraceTables read_nsys(const std::filesystem::path& path) {
  throw Error(fmt::format("{} is a database of Nsight Systems, and this program was built without "
                          "SQLite (Debian: libsqlite3-dev).",
                          path.string()),
              ExitCode::kMissingDevice);
}

#else

namespace {

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
};
struct Finalize {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Statement = std::unique_ptr<sqlite3_stmt, Finalize>;

std::string_view text_at(sqlite3_stmt* row, int column) {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(row, column));
  return text != nullptr
             ? std::string_view(text, static_cast<std::size_t>(sqlite3_column_bytes(row, column)))
             : std::string_view{};
}

/// "aten::mm, seq = 7, op_id = 3, sizes = [[8, 4], [4, 2]], ..." to its name and its sizes.
void split_range(std::string_view text, std::string_view& name, std::string& sizes) {
  name = text.substr(0, text.find(", "));
  const std::size_t at = text.find("sizes = [");
  if (at == std::string_view::npos) return;
  int depth = 0;
  for (std::size_t i = at + 8; i < text.size(); ++i) {
    if (text[i] == '[') ++depth;
    if (text[i] == ']' && --depth == 0) {
      sizes = std::string(text.substr(at + 8, i + 1 - (at + 8))) + kPartEnd + kPartEnd;
      return;
    }
  }
}

// The longest text or name that is read, and how much work a query may be: about 30 steps of
// SQLite's machine read a row of 20 bytes and join it with its name.
constexpr int kMostValueBytes = 1 << 20;
constexpr int kStepsBetween = 100'000;
constexpr std::int64_t kLeastSteps = 10'000'000;
constexpr std::int64_t kStepsPerByte = 64;

class NsysReader {
 public:
  explicit NsysReader(const std::filesystem::path& path) : file_(path.string()) {
    std::error_code unknown;
    if (!std::filesystem::is_regular_file(path, unknown)) {
      throw Error(fmt::format("{} is no regular file, expected a database.", file_));
    }
    // Absolute, because SQLite may take "file:..." for an address with options.
    const std::string absolute = std::filesystem::absolute(path).string();
    sqlite3* raw = nullptr;
    const int status = sqlite3_open_v2(absolute.c_str(), &raw, SQLITE_OPEN_READONLY, nullptr);
    database_.reset(raw);
    if (status != SQLITE_OK) {
      throw Error(fmt::format("{} cannot be opened as a database: {}.", file_,
                              raw != nullptr ? sqlite3_errmsg(raw) : "out of memory"));
    }
    tables_.source.file = file_;
    tables_.source.format = "nsys";
    const auto file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, unknown));
    most_steps_ = kLeastSteps + kStepsPerByte * std::max<std::int64_t>(file_bytes, 0);
    take_as_data_only();
  }

  TraceTables read() {
    has_table("StringIds");  // which all are joined with
    if (!has_table("CUPTI_ACTIVITY_KIND_KERNEL")) {
      throw Error(
          fmt::format("{} has no table CUPTI_ACTIVITY_KIND_KERNEL, expected a database that "
                      "`nsys export --type sqlite` wrote of a run with CUDA.",
                      file_));
    }
    for (const char* table : {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY",
                              "CUPTI_ACTIVITY_KIND_MEMSET"}) {
      processes_are_known_ =
          processes_are_known_ && (!has_table(table) || has_column(table, "globalPid"));
    }
    read_device(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "SELECT k.start, k.end, k.correlationId, k.deviceId, k.streamId, s.value, 0, {} FROM "
        "CUPTI_ACTIVITY_KIND_KERNEL k LEFT JOIN StringIds s ON s.id = k.demangledName",
        DeviceWork::kKernel);
    // copyKind 8: device to device; other kinds cross a bus.
    read_device("CUPTI_ACTIVITY_KIND_MEMCPY",
                "SELECT start, end, correlationId, deviceId, streamId, CASE copyKind WHEN 8 THEN "
                "'Memcpy DtoD' ELSE 'Memcpy HtoD or DtoH' END, bytes, {} FROM "
                "CUPTI_ACTIVITY_KIND_MEMCPY",
                DeviceWork::kCopy);
    read_device("CUPTI_ACTIVITY_KIND_MEMSET",
                "SELECT start, end, correlationId, deviceId, streamId, 'Memset', bytes, {} FROM "
                "CUPTI_ACTIVITY_KIND_MEMSET",
                DeviceWork::kSet);
    if (has_table("CUPTI_ACTIVITY_KIND_RUNTIME")) {
      for_each(
          "SELECT r.start, r.end, r.correlationId, r.globalTid, s.value FROM "
          "CUPTI_ACTIVITY_KIND_RUNTIME r LEFT JOIN StringIds s ON s.id = r.nameId",
          [&](sqlite3_stmt* row) {
            RuntimeCall call;
            if (!times(row, call.begin, call.end)) return;
            call.correlation = correlation_of(row, 2, sqlite3_column_int64(row, 3));
            call.thread = thread_of(row, 3);
            call.name = tables_.names.id(text_at(row, 4));
            tables_.calls.push_back(call);
          });
    }
    if (has_table("NVTX_EVENTS")) {
      for_each(
          "SELECT e.start, e.end, e.globalTid, COALESCE(e.text, s.value) FROM NVTX_EVENTS e "
          "LEFT JOIN StringIds s ON s.id = e.textId WHERE e.end IS NOT NULL",
          [&](sqlite3_stmt* row) {
            HostRange range;
            if (!times(row, range.begin, range.end)) return;
            range.thread = thread_of(row, 2);
            std::string_view name;
            std::string sizes;
            split_range(text_at(row, 3), name, sizes);
            range.name = tables_.names.id(name);
            if (!sizes.empty()) {
              range.shapes = tables_.names.id(sizes);
              tables_.has_shapes = true;
            }
            tables_.ranges.push_back(range);
          });
    }
    if (has_table("TARGET_INFO_GPU")) {
      for_each("SELECT name FROM TARGET_INFO_GPU", [&](sqlite3_stmt* row) {
        tables_.source.gpu = text_at(row, 0);
        ++tables_.device_count;
      });
    }
    if (tables_.full()) {
      tables_.notes.push_back(
          fmt::format("{} holds more than {} operations; the rest was left out.", file_,
                      TraceTables::kMaxRecords));
    }
    return std::move(tables_);
  }

 private:
  /// The database is a stranger's and a database can hold programs: views, virtual tables, columns
  /// that are computed. What is read must be stored rows, and reading them may take no more work
  /// than the file is large.
  void take_as_data_only() {
    sqlite3* database = database_.get();
    sqlite3_db_config(database, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
    sqlite3_db_config(database, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
    sqlite3_db_config(database, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
    sqlite3_limit(database, SQLITE_LIMIT_LENGTH, kMostValueBytes);
    sqlite3_limit(database, SQLITE_LIMIT_ATTACHED, 0);
    sqlite3_progress_handler(
        database, kStepsBetween,
        [](void* self) {
          auto* reader = static_cast<NsysReader*>(self);
          reader->steps_ += kStepsBetween;
          return reader->steps_ > reader->most_steps_ ? 1 : 0;
        },
        this);
  }

  bool has_table(const std::string& name) {
    bool found = false;
    bool stored = true;
    // A virtual table has no pages of its own.
    for_each(
        "SELECT type = 'table' AND rootpage > 0 FROM sqlite_master WHERE name = '" + name + "'",
        [&](sqlite3_stmt* row) {
          found = true;
          stored = stored && sqlite3_column_int(row, 0) != 0;
        });
    if (!found) return false;
    // The last column: 2 and 3 are computed ones.
    if (stored) {
      for_each("PRAGMA table_xinfo('" + name + "')",
               [&](sqlite3_stmt* row) { stored = stored && sqlite3_column_int(row, 6) == 0; });
    }
    if (!stored) {
      throw Error(
          fmt::format("{}: {} is computed (a view, a virtual table or a computed column), "
                      "expected stored rows as `nsys export --type sqlite` writes them.",
                      file_, name));
    }
    return true;
  }

  bool has_column(const std::string& table, std::string_view column) {
    bool found = false;
    for_each("PRAGMA table_info('" + table + "')",
             [&](sqlite3_stmt* row) { found = found || text_at(row, 1) == column; });
    return found;
  }

  void for_each(const std::string& query, const std::function<void(sqlite3_stmt*)>& row) {
    steps_ = 0;
    sqlite3_stmt* raw = nullptr;
    if (sqlite3_prepare_v2(database_.get(), query.c_str(), -1, &raw, nullptr) != SQLITE_OK) {
      throw Error(fmt::format("{} is not laid out as Nsight Systems lays it out: {}.", file_,
                              sqlite3_errmsg(database_.get())));
    }
    const Statement statement(raw);
    int status = SQLITE_ROW;
    while (!tables_.full() && (status = sqlite3_step(raw)) == SQLITE_ROW) row(raw);
    if (status == SQLITE_INTERRUPT) {
      throw Error(
          fmt::format("{} takes more work to read than a database of its size can need.", file_));
    }
    if (status != SQLITE_ROW && status != SQLITE_DONE) {
      tables_.source.truncated = true;
      tables_.notes.push_back(fmt::format("{} could not be read to its end: {}.", file_,
                                          sqlite3_errmsg(database_.get())));
    }
  }

  bool times(sqlite3_stmt* row, Nanoseconds& begin, Nanoseconds& end) {
    begin = sqlite3_column_int64(row, 0);
    end = sqlite3_column_int64(row, 1);
    constexpr Nanoseconds kFar = Nanoseconds{1} << 61;
    if (begin >= 0 && end >= begin && end < kFar) return true;
    count_left_out(tables_.left_out, "events of negative duration", 0);
    return false;
  }

  /// Correlation ids begin anew in each process, so an id is one of its process: of globalPid, or
  /// of globalTid without the thread in its low 24 bits. Where an export leaves processes out of
  /// its kernels, ids are taken as they are.
  std::int64_t correlation_of(sqlite3_stmt* row, int column, std::int64_t global_id) {
    constexpr int kThreadBits = 24, kIdBits = 40;
    const std::int64_t id = sqlite3_column_int64(row, column);
    if (!processes_are_known_) return id;
    const auto [process, fresh] = processes_.try_emplace(
        global_id >> kThreadBits, static_cast<std::int64_t>(processes_.size()));
    return (process->second << kIdBits) | (id & ((std::int64_t{1} << kIdBits) - 1));
  }

  static std::uint32_t thread_of(sqlite3_stmt* row, int column) {
    // The low 24 bits are the thread, above them the process; together they fit.
    return static_cast<std::uint32_t>(sqlite3_column_int64(row, column) & 0xffffffff);
  }

  void read_device(const std::string& table, const std::string& query, DeviceWork work) {
    if (!has_table(table)) return;
    const std::string_view process = processes_are_known_ ? "globalPid" : "NULL";
    for_each(fmt::format(fmt::runtime(query), process), [&](sqlite3_stmt* row) {
      DeviceSpan span;
      if (!times(row, span.begin, span.end)) return;
      span.work = work;
      span.correlation = correlation_of(row, 2, sqlite3_column_int64(row, 7));
      span.device = static_cast<std::int32_t>(sqlite3_column_int64(row, 3) & 0xffff);
      span.stream = static_cast<std::int32_t>(sqlite3_column_int64(row, 4) & 0x3fffffff);
      span.name = tables_.names.id(text_at(row, 5));
      span.bytes = std::clamp<std::int64_t>(sqlite3_column_int64(row, 6), 0, std::int64_t{1} << 50);
      tables_.device.push_back(span);
    });
  }

  std::string file_;
  std::int64_t steps_ = 0;  // of SQLite's machine, this query
  std::int64_t most_steps_ = 0;
  bool processes_are_known_ = true;
  std::map<std::int64_t, std::int64_t> processes_;  // numbered in the order of their first work
  std::unique_ptr<sqlite3, CloseDatabase> database_;
  TraceTables tables_;
};

}  // namespace

TraceTables read_nsys(const std::filesystem::path& path) {
  return NsysReader(path).read();
}

#endif

}  // namespace shardwright::profiles
