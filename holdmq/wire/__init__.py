"""The internal RPC, sans-IO: frames, the command header, request codes, typed headers.

A connection is a `FrameDecoder` on the way in and `encode_frame` on the way out; the asyncio
shells are in `holdmq.rpc`.
"""
