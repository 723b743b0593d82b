// The caller of the method that this thread is starting, from the check before it
// (server/api/guard.h) to the service.
#ifndef STATCOLLECT_SERVER_ACCESS_CURRENT_H_
#define STATCOLLECT_SERVER_ACCESS_CURRENT_H_

#include "server/access/access.h"

namespace statcollect::access {

// Valid in a service's method until it returns its reactor: code that runs after that must copy
// what it needs. Where nobody checked, as in tests without Guard: nobody, about the default
// project.
const Principal& CurrentPrincipal();

// Sets it for this thread and this scope. `principal` must outlive it.
class PrincipalScope {
 public:
  explicit PrincipalScope(const Principal& principal);
  ~PrincipalScope();
  PrincipalScope(const PrincipalScope&) = delete;
  PrincipalScope& operator=(const PrincipalScope&) = delete;

 private:
  const Principal* const before_;
};

}  // namespace statcollect::access

#endif  // STATCOLLECT_SERVER_ACCESS_CURRENT_H_
