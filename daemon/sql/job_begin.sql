-- First statement of a transaction that saves jobs: its commit will be on disk when it is answered, whatever the server's default
-- (remote_apply is more, and stays). A producer may call this; mailslot.commit_durably() isn't his.
-- No parameters, no locks. Result: one row (now, durable); now is the database's clock, which relative times count from.
SELECT now() AS now,
       set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true) AS durable
