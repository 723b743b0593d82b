// A collector that ends once nobody uses it, as statctl starts one for itself.
#ifndef STATCOLLECT_SERVER_DAEMON_USERS_H_
#define STATCOLLECT_SERVER_DAEMON_USERS_H_

#include <functional>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "common/status.h"

namespace statcollect {

// Stops `io` once no statctl holds the folder's lock (common/data_folder.h) and `busy` is false. It
// then keeps the lock until the process ends, so that whoever comes next waits for that. Used and
// destroyed on the thread of `io`.
class Users {
 public:
  // kPermissionDenied: the lock's file cannot be opened.
  static Result<std::unique_ptr<Users>> Watch(boost::asio::io_context& io,
                                              const std::string& folder,
                                              std::function<bool()> busy);
  Users(const Users&) = delete;
  Users& operator=(const Users&) = delete;

 private:
  Users(boost::asio::io_context& io, int fd, std::function<bool()> busy);
  void Wait();
  bool AllGone();

  boost::asio::io_context& io_;
  boost::asio::steady_timer timer_;
  const std::function<bool()> busy_;
  const int fd_;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_DAEMON_USERS_H_
