// Messages of a call in one arena: an answer of thousands of rows is filled without an allocation
// for each, and freed at once.
#ifndef STATCOLLECT_SERVER_API_ARENA_MESSAGES_H_
#define STATCOLLECT_SERVER_API_ARENA_MESSAGES_H_

#include <google/protobuf/arena.h>
#include <grpcpp/support/message_allocator.h>

namespace statcollect::api {

// For a service's SetMessageAllocatorFor_..., which it must outlive. Thread-safe.
template <typename Request, typename Response>
class ArenaMessages final : public grpc::MessageAllocator<Request, Response> {
 public:
  grpc::MessageHolder<Request, Response>* AllocateMessages() override { return new Holder; }

 private:
  class Holder final : public grpc::MessageHolder<Request, Response> {
   public:
    Holder() : arena_(Options()) {
      this->set_request(google::protobuf::Arena::CreateMessage<Request>(&arena_));
      this->set_response(google::protobuf::Arena::CreateMessage<Response>(&arena_));
    }
    void Release() override { delete this; }

   private:
    static google::protobuf::ArenaOptions Options() {
      google::protobuf::ArenaOptions options;
      options.max_block_size = 256 << 10;
      return options;
    }

    google::protobuf::Arena arena_;
  };
};

}  // namespace statcollect::api

#endif  // STATCOLLECT_SERVER_API_ARENA_MESSAGES_H_
