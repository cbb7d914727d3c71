// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/rendezvous.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "exec/comm/private_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::exec {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostFileBytes = 4096;
constexpr std::size_t kLeastKeyBytes = 16;
// Ports made from a job's number: above what systems reserve, below what they give to clients.
constexpr std::int64_t kFirstPort = 20000;
constexpr std::int64_t kPorts = 12000;

/// "HOST PORT SECRET" of the file that rank 0 wrote.
std::optional<BootstrapAddress> read_address(const fs::path& path, std::string& why) {
  const std::optional<std::string> text = read_private_file(path, kMostFileBytes, why);
  if (!text) {
    why = fmt::format("{}: {}", path.string(), why);
    return std::nullopt;
  }
  std::istringstream words(*text);
  BootstrapAddress address;
  std::string port;
  words >> address.host >> port >> address.secret;
  const std::optional<std::int64_t> number = parse_int64(port);
  if (!number || *number < 1 || *number > 65535 || address.secret.empty()) {
    why = fmt::format("{}: it does not say where rank 0 listens", path.string());
    return std::nullopt;
  }
  address.port = static_cast<int>(*number);
  // A machine's own name is not always one that it can look up.
  if (address.host == host_name()) address.host = "localhost";
  return address;
}

[[noreturn]] void refuse_rendezvous(const std::string& wish) {
  throw Error(
      fmt::format("--rendezvous is '{}', expected auto, tcp://HOST:PORT or file:///PATH", wish));
}

Rendezvous parse(const std::string& wish) {
  Rendezvous result;
  if (wish.starts_with("file://")) {
    result.file = wish.substr(7);
    if (result.file.empty() || result.file[0] != '/') refuse_rendezvous(wish);
    return result;
  }
  if (!wish.starts_with("tcp://")) refuse_rendezvous(wish);
  const std::size_t colon = wish.rfind(':');
  result.host = wish.substr(6, colon < 6 ? 0 : colon - 6);
  if (result.host.size() > 2 && result.host.front() == '[' && result.host.back() == ']') {
    result.host = result.host.substr(1, result.host.size() - 2);
  }
  const std::optional<std::int64_t> port = parse_int64(wish.substr(colon + 1));
  if (result.host.empty() || !port || *port < 1 || *port > 65535) refuse_rendezvous(wish);
  result.port = static_cast<int>(*port);
  return result;
}

std::string run_of(const Environment& environment) {
  std::string run;
  for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID",
                           "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "PMIX_NAMESPACE"}) {
    if (const auto value = environment(name)) run += (run.empty() ? "" : ".") + *value;
  }
  return run;
}

std::string key_of(const Environment& environment) {
  std::string key = environment("SHARDWRIGHT_MEETING_KEY").value_or("");
  if (!key.empty() && key.size() < kLeastKeyBytes) {
    throw Error(
        fmt::format("SHARDWRIGHT_MEETING_KEY has {} characters, expected at least {} that "
                    "nobody can guess, the same for all ranks",
                    key.size(), kLeastKeyBytes));
  }
  return key;
}

}  // namespace

std::string Rendezvous::name() const {
  if (!file.empty()) return "file://" + file;
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? fmt::format("tcp://[{}]:{}", host, port) : fmt::format("tcp://{}:{}", host, port);
}

BootstrapPlace Rendezvous::place() const {
  BootstrapPlace place;
  place.name = name();
  place.key = key;
  place.run = run;
  if (file.empty()) {
    place.port = port;
    place.port_advice = "expected a free one: choose it with MASTER_PORT or --rendezvous";
    place.find = [address = BootstrapAddress{host, port, {}}](std::string&) { return address; };
    place.host = host;
    // Many a machine knows itself by its own name as 127.0.1.1, where ranks on others find nobody.
    if (!on_one_machine && !is_numeric_address(host) && names_loopback(host)) place.host.clear();
    return place;
  }
  if (on_one_machine) place.host = "127.0.0.1";
  place.publish = [path = file](const BootstrapAddress& address) {
    write_private_file(path, fmt::format("{} {} {}\n", address.host, address.port, address.secret));
  };
  place.find = [path = file](std::string& why) { return read_address(path, why); };
  place.port_advice = "expected a port that is free";
  return place;
}

std::string first_slurm_host(const std::string& list) {
  const std::size_t bracket = list.find('[');
  const std::size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const std::size_t end = list.find_first_of(",-]", bracket);
  const std::size_t close = list.find(']', bracket);
  if (end == std::string::npos || close == std::string::npos) return {};
  const std::size_t tail = list.find(',', close);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) +
         list.substr(close + 1, tail == std::string::npos ? tail : tail - close - 1);
}

Rendezvous choose_rendezvous(const std::string& wish, const LaunchEnvironment& launch,
                             const Environment& environment) {
  Rendezvous result = wish == "auto" ? Rendezvous() : parse(wish);
  result.run = run_of(environment);
  result.key = key_of(environment);
  result.on_one_machine = launch.local_ranks == launch.ranks;
  if (wish != "auto") return result;
  if (!launch.address.empty()) {
    result.host = launch.address;
    result.port = static_cast<int>(launch.port);
    return result;
  }
  if (launch.launcher == Launcher::kSlurm) {
    const auto hosts = environment("SLURM_STEP_NODELIST");
    const auto job = environment("SLURM_JOB_ID");
    const std::optional<std::int64_t> number = job ? parse_int64(*job) : std::nullopt;
    if (hosts && number && *number >= 0) {
      const std::int64_t step = parse_int64(environment("SLURM_STEP_ID").value_or("0")).value_or(0);
      result.host = first_slurm_host(*hosts);
      result.port = static_cast<int>(
          kFirstPort + (*number % kPorts * 16 + std::max<std::int64_t>(step, 0) % kPorts) % kPorts);
      if (!result.host.empty()) return result;
    }
  }
  if (result.on_one_machine) {
    // All ranks have one parent, who is there as long as they are.
    result.file =
        (private_folder(environment) / fmt::format("shardwright-meeting-{}", getppid())).string();
    return result;
  }
  throw Error(
      fmt::format("{} does not tell where {} processes on several machines can meet: give "
                  "--rendezvous tcp://HOST:PORT with the host of rank 0, or "
                  "file:///PATH on a file system that all share",
                  name_of(launch.launcher), launch.ranks));
}

std::unique_ptr<Bootstrap> meet(const Rendezvous& rendezvous, const LaunchEnvironment& launch,
                                const std::string& fingerprint, const BootstrapTimes& times) {
  Introduction self;
  self.rank = static_cast<int>(launch.rank);
  self.ranks = static_cast<int>(launch.ranks);
  self.fingerprint = fingerprint;
  std::unique_ptr<Bootstrap> bootstrap = join_bootstrap(rendezvous.place(), self, times);
  if (self.rank == 0 && !rendezvous.file.empty()) {
    std::error_code ignored;
    fs::remove(rendezvous.file, ignored);
  }
  return bootstrap;
}

}  // namespace shardwright::exec
