// SPDX-License-Identifier: Apache-2.0
// What the vendors' libraries do that their interfaces do not say: rules.json, which the build
// carries, as the code, the fakes of the tests, the configuration and the scripts read it.
//
// Every rule names the releases for which it was read in the vendor's source or documents; one that
// was inferred from others' reports says so. Of newer releases nothing is known.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright::exec::libraries {

struct VendorRule {
  std::string id;       // "nccl.message_channels"
  std::string library;  // "nccl", as `doctor` calls it
  std::string from, to;
  std::string rule, source;
  bool is_read = false;  // else inferred
};
const std::vector<VendorRule>& vendor_rules();

/// A value of a rule; both must exist.
std::int64_t rule_number(std::string_view id, std::string_view key);
std::string rule_text(std::string_view id, std::string_view key);

/// Whether release a, "2.9" or "2.28.9", comes before b. Parts that one of them lacks do not count.
bool is_older(std::string_view a, std::string_view b);
/// Where the rules of a library end before that release, a sentence that says so; else empty.
std::string beyond_rules(std::string_view library, std::string_view version);

/// "R580 or newer, or on data-centre GPUs the package cuda-compat-13-0": the drivers that serve
/// programs of that CUDA; empty where no rule names them.
std::string drivers_of(int cuda_major);

/// What to do where the driver answers that code, as the end of a sentence; mostly empty.
std::string way_out_of_status(int code);

/// How many passes of a layer each of so many ranks of one process may have launched before they
/// are run, so that the launches of all fill half of what the driver queues: 2 to 8.
int run_ahead_of(std::int64_t ranks);

/// Channels of NCCL, a thread block each, that a message between two ranks takes which `links`
/// NVLinks connect (0: PCIe or the network), where the communicator may have `most_ctas`
/// (0: NCCL's choice).
std::int64_t message_channels(std::int64_t links, std::int64_t most_ctas);
/// The thread blocks to give a communicator of messages: enough for the links, but so few that its
/// channels are at most `allowed` (0: whatever is enough) whatever connects the ranks.
int message_ctas(int allowed);

}  // namespace shardwright::exec::libraries
