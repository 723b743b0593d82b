// A collector that statctl starts where none answers, for as long as it runs.
#ifndef STATCOLLECT_CLIENT_RPC_OWN_COLLECTOR_H_
#define STATCOLLECT_CLIENT_RPC_OWN_COLLECTOR_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "client/rpc/collector.h"
#include "common/status.h"

namespace statcollect::client {

// The use of the collector that has a data folder open. Whoever serves the folder is found by its
// address in there, whether it is a team's statcollectord or one that another statctl has started;
// only if nobody answers, one is started, as a process of its own session, with its log in the
// folder. It ends by itself when the last user has gone, however that ended.
class OwnCollector {
 public:
  // Waits until it is ready: as long as the store takes to open. The folder is made if it is
  // missing. Asks `cancelled` ten times a second, and then returns kCancelled. kNotFound: no
  // statcollectord beside statctl or on PATH; kFailedPrecondition: it does not start, with its
  // reason; kPermissionDenied: the folder cannot be used. `remark` is called once, with a
  // sentence, if it has to wait.
  static Result<std::unique_ptr<OwnCollector>> Use(
      const std::string& folder, const std::function<bool()>& cancelled,
      const std::function<void(const std::string&)>& remark = {});
  ~OwnCollector();
  OwnCollector(const OwnCollector&) = delete;
  OwnCollector& operator=(const OwnCollector&) = delete;

  // Ends the use, and waits up to 10 s for the collector's end if this object has started it and
  // nobody else uses it.
  void End();

  const std::string& address() const { return address_; }
  bool started() const { return started_ != 0; }  // by this object
  bool passing() const {
    return passing_;
  }  // it ends with its users, whoever of them has started it

 private:
  OwnCollector(int users, std::string address, pid_t started, bool passing)
      : users_(users), address_(std::move(address)), started_(started), passing_(passing) {}

  int users_;  // the lock
  const std::string address_;
  const pid_t started_;  // 0: by somebody else
  const bool passing_;
};

struct OwnCollectorOptions {
  std::string folder;  // of the data
  bool named = false;  // by the user: no other collector is looked for
  bool start = true;   // false: only one that runs already is used
  bool make_folder =
      false;  // a folder that is missing is made; else nothing is started without one
  std::function<void(const std::string&)> remark;  // told in a sentence what was started
};
// The collector at the default address if one answers there, else the one that has the folder open,
// else one that is started. The use lasts as long as the function.
Locate LocateOwn(const OwnCollectorOptions& options);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RPC_OWN_COLLECTOR_H_
