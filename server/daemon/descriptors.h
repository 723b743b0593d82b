// How the process's file descriptors are divided. A store that cannot open a file stops accepting
// records, so it has its own, which connections cannot take.
#ifndef STATCOLLECT_SERVER_DAEMON_DESCRIPTORS_H_
#define STATCOLLECT_SERVER_DAEMON_DESCRIPTORS_H_

#include <cstdint>
#include <functional>
#include <string>

namespace statcollect {

struct DescriptorBudget {
  int store_files = 0;      // tables that RocksDB may hold open
  int connections_end = 0;  // the first number that no connection may have
};

// For a process that may have `all` open at a time.
DescriptorBudget DivideDescriptors(std::uint64_t all);

// Raises the process's limit as far as the system lets it. `warn`: called if that is too little for
// a few hundred ranks.
DescriptorBudget TakeDescriptors(const std::function<void(const std::string& line)>& warn);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_DAEMON_DESCRIPTORS_H_
