-- Makes the server notice within about ten seconds that this worker's machine is gone, and end the session.
--
-- Locks nothing.  Holds for the session.  Result: one row.
SELECT set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false),
       set_config('tcp_keepalives_count', '2', false), set_config('tcp_user_timeout', '10000', false),
       set_config('client_connection_check_interval', '1s', false)
