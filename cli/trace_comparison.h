// A predicted step subtracted from a measured one: by class of operation, and operation by
// operation.
//
// Both are Chrome traces whose slices carry the ids of one schedule. Of the prediction the first
// process counts (one rank); the measurement is the mean over its ranks and steps. A class is a
// phase and a kind ("backward attention").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/chrome_trace_reader.h"

namespace shardwright::cli {

struct ComparedClass {
  std::string phase;
  std::string kind;
  std::int64_t operations = 0;  // in both
  double predicted_s = 0;       // of a step, on one rank
  double measured_s = 0;
  double difference_s() const { return measured_s - predicted_s; }
};

struct ComparedOperation {
  std::int64_t id = 0;
  std::string name;
  double predicted_s = 0;
  double measured_s = 0;
  double difference_s() const { return measured_s - predicted_s; }
};

struct TraceComparison {
  double predicted_step_s = 0;  // from the first slice's begin to the last one's end
  double measured_step_s = 0;
  std::int64_t measured_ranks = 0;
  std::vector<ComparedClass> classes;         // the largest difference first
  std::vector<ComparedOperation> operations;  // the largest difference first
  std::int64_t only_predicted = 0;            // operations without a counterpart
  std::int64_t only_measured = 0;
  double error() const { return measured_step_s / predicted_step_s - 1; }
};

/// The names stand for the files in errors. Throws Error when there is nothing to compare.
TraceComparison compare_traces(const ReadTrace& predicted, const std::string& predicted_name,
                               const ReadTrace& measured, const std::string& measured_name);

}  // namespace shardwright::cli
